from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "horovod")]

import nccl_site  # noqa: E402
from ring_lab import Lab, lent  # noqa: E402

STANDIN = HERE / "standin"
FLAGS = ("-std=c++17", "-O1", "-shared", "-fPIC", "-pthread", "-Wall", "-Werror")


@pytest.fixture(scope="session")
def site() -> Path:
    """A directory with the NCCL build of Horovod; on a machine's first run it is built."""
    return nccl_site.make()


@dataclasses.dataclass(frozen=True)
class StandIn:
    """Where the test doubles of CUDA and NCCL are."""

    folder: Path
    site: Path

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            "PYTHONPATH": str(self.site),
            "LD_LIBRARY_PATH": str(self.folder),
            "STANDIN_DEVICE_TENSORS": str(self.folder / "device_tensors.so"),
        }


@pytest.fixture(scope="session")
def standin(site: Path, tmp_path_factory: pytest.TempPathFactory) -> StandIn:
    """The stand-in, compiled now: it is in no wheel."""
    builder = nccl_site.horovod_build
    folder = tmp_path_factory.mktemp("standin")
    nvidia = builder.Nvidia({}, {name: site / place for name, place in builder.NVIDIA_PACKAGES.items()})
    include = ["-isystem", str(builder.cuda_home(nvidia, folder / "cuda") / "include")]
    options = {"HOROVOD_GPU_OPERATIONS": "NCCL"}
    cache = builder.cache_root()
    sdist = builder.fetch_sdist(Path(sys.executable), cache, folder / "log")
    tree = builder.unpack_and_patch(sdist, folder, options)
    cuda, nccl = folder / "libcudart.so.12", folder / "libnccl.so.2"
    versions = f"-Wl,--version-script={STANDIN / 'cudart.map'}"
    horovod = ["-DHAVE_GPU=1", "-DHAVE_CUDA=1", "-DHAVE_GLOO=1", "-isystem", str(tree / "horovod")]
    for source, output, more in (
        ("cudart.cc", cuda, ["-Wl,-soname,libcudart.so.12", versions]),
        ("nccl.cc", nccl, ["-Wl,-soname,libnccl.so.2", str(cuda)]),
        ("device_tensors.cc", folder / "device_tensors.so", horovod),
    ):
        command = ["g++", *FLAGS, *include, str(STANDIN / source), "-o", str(output), *more]
        subprocess.run(command, check=True)
    return StandIn(folder, site)


@pytest.fixture(scope="session")
def _device_lab(standin: StandIn) -> Iterator[Lab]:
    lab = Lab(HERE / "device_worker.py", standin.environment)
    yield lab
    lab.close()


@pytest.fixture
def lab(_device_lab: Lab) -> Iterator[Lab]:
    """Horovod processes with the stand-in for a GPU."""
    with lent(_device_lab) as lab:
        yield lab


_report: dict[str, Any] = {}


@pytest.fixture
def gpu_report() -> dict[str, Any]:
    """What is written to the file that GPU_REPORT names, beside how each test ended."""
    return _report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if "test_on_gpus" in report.nodeid and (report.when == "call" or report.outcome != "passed"):
        name = report.nodeid.rpartition("::")[2]
        words = str(report.longrepr)[-2000:] if report.outcome != "passed" else ""
        _report.setdefault("tests", {})[name] = {"outcome": report.outcome, "words": words}


def pytest_sessionfinish() -> None:
    where = os.environ.get("GPU_REPORT")
    if where and _report:
        smi = shutil.which("nvidia-smi")
        if smi:
            _report["nvidia-smi"] = subprocess.run([smi], capture_output=True, text=True).stdout
        Path(where).parent.mkdir(parents=True, exist_ok=True)
        Path(where).write_text(json.dumps(_report, indent=2) + "\n")
