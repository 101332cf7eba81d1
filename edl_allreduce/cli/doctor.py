"""`elasticdl doctor`: is this machine able to train, and if not, what cures it.

What may crash or hang (TensorFlow, Horovod) is looked at from a process of its own. Facts are gathered first
and judged by a pure function, so that every verdict can be tested without breaking a machine.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import enum
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from edl_allreduce import outside
from edl_allreduce.spec.words import Parser
from edl_allreduce.version import STOCK_HOROVOD, __version__

_ABOUT: Final = """\
Check whether this machine can train, and say what is missing and what cures it.

  elasticdl doctor
  elasticdl doctor --output=json

Exit code 0: able to train. 1: not able; the lines marked [!!] say why."""

# Importing TensorFlow for the first time on a slow disk takes long; a probe that takes longer is stuck.
_PROBE_SECONDS: Final = 180

_TESTED_TENSORFLOW: Final = "2.21"
_SETUP: Final = "scripts/setup"

# Distribution names whose version is worth knowing, and the name that people know.
_DISTRIBUTIONS: Final = {
    "TensorFlow": ("tensorflow", "tensorflow-cpu"),
    "Keras": ("keras",),
    "Horovod": ("horovod",),
    "NumPy": ("numpy",),
    "grpc": ("grpcio",),
    "msgspec": ("msgspec",),
    "rich": ("rich",),
    "kubernetes client": ("kubernetes",),
}

_TENSORFLOW_PROBE: Final = """
import json, os
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import tensorflow as tf
import keras
devices = [d.device_type for d in tf.config.list_physical_devices()]
print("\\n" + json.dumps({"version": tf.__version__, "keras": keras.__version__, "devices": devices}))
"""

# Our build says so in its version and by a function that the library exports.
_HOROVOD_PROBE: Final = """
import ctypes, json, os, pathlib
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import horovod
import horovod.tensorflow as hvd
library = ctypes.CDLL(str(next(pathlib.Path(hvd.__file__).parent.glob("mpi_lib*.so"))))
try:
    driver = bool(ctypes.CDLL("libcuda.so.1"))
except OSError:
    driver = False
print("\\n" + json.dumps({
    "version": horovod.__version__,
    "gloo": bool(hvd.gloo_built()),
    "mpi": bool(hvd.mpi_built()),
    "nccl": hvd.nccl_built(),
    "ours": hasattr(library, "horovod_edl_features") or "+edl" in horovod.__version__,
    "driver": driver,
}))
"""


class Health(enum.StrEnum):
    """How much a finding matters."""

    GOOD = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `cure` is what to type or to do; empty when nothing is wrong."""

    topic: str
    health: Health
    detail: str
    cure: str = ""


@dataclasses.dataclass(frozen=True)
class Broken:
    """A probe that did not answer, and its last words."""

    reason: str


# What a probe printed, or why it printed nothing.
Probe = Mapping[str, Any] | Broken


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """What is the case on this machine. A version is missing when the package is not installed."""

    python: tuple[int, int, int]
    system: str
    versions: Mapping[str, str]
    tensorflow: Probe
    horovod: Probe
    cores: int
    memory_gib: float
    tools: frozenset[str]


def main(argv: Sequence[str]) -> int:
    """Look, judge, print."""
    parser = Parser("elasticdl doctor", "[--output=text|json]", _ABOUT)
    parser.add_argument(
        "--output", choices=("text", "json"), default="text", help="how to print the findings"
    )
    output = parser.read(argv).output
    if output == "text" and sys.stderr.isatty():
        print("Looking at TensorFlow and Horovod; this takes some seconds.", file=sys.stderr)
    findings = judge(gather())
    print(as_json(findings) if output == "json" else outside.story(as_text(findings)))
    return 0 if able_to_train(findings) else 1


def able_to_train(findings: Sequence[Finding]) -> bool:
    """Whether nothing stands in the way of `elasticdl train`."""
    return not any(finding.health is Health.PROBLEM for finding in findings)


def gather() -> Facts:
    """Look at this machine."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        tensorflow, horovod = pool.map(probe, (_TENSORFLOW_PROBE, _HOROVOD_PROBE))
    return Facts(
        python=(sys.version_info.major, sys.version_info.minor, sys.version_info.micro),
        system=platform.platform(),
        versions=_versions(),
        tensorflow=tensorflow,
        horovod=horovod,
        cores=len(os.sched_getaffinity(0)),
        memory_gib=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
        tools=frozenset(tool for tool in ("g++", "cmake", "make") if shutil.which(tool)),
    )


def probe(source: str) -> Probe:
    """Run Python source in a process of its own; the last line that it prints is its answer as JSON."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", source],
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Broken(f"no answer within {_PROBE_SECONDS} s")
    if done.returncode < 0:
        return Broken(f"the process was killed by signal {-done.returncode}")
    if done.returncode > 0:
        words = done.stderr.strip().splitlines()
        return Broken(words[-1] if words else f"the process exited with {done.returncode}")
    answer = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(answer, dict)
    return answer


def judge(facts: Facts) -> list[Finding]:
    """What the facts mean."""
    return [
        Finding("elasticdl", Health.GOOD, __version__),
        _python(facts),
        _tensorflow(facts),
        *_keras(facts),
        *_horovod(facts),
        *_libraries(facts),
        _kubernetes(facts),
        _machine(facts),
        *_devices(facts),
    ]


def as_json(findings: Sequence[Finding]) -> str:
    """For programs."""
    return json.dumps(
        {
            "able_to_train": able_to_train(findings),
            "findings": [dataclasses.asdict(finding) for finding in findings],
        },
        indent=2,
    )


def as_text(findings: Sequence[Finding]) -> str:
    """For people."""
    marks = {Health.GOOD: "[ok]", Health.NOTE: "[--]", Health.PROBLEM: "[!!]"}
    width = max(len(finding.topic) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{marks[finding.health]} {finding.topic:{width}}  {finding.detail}")
        if finding.cure:
            lines.append(f"     {'':{width}}  cure: {finding.cure}")
    verdict = "Able to train." if able_to_train(findings) else "Not able to train: see the lines marked [!!]."
    return "\n".join([*lines, "", verdict])


# -- one function per topic ----------------------------------------------------------------------------------


def _python(facts: Facts) -> Finding:
    version = ".".join(map(str, facts.python))
    if facts.python < (3, 11, 0):
        return Finding("Python", Health.PROBLEM, f"{version}; 3.11 or newer is needed", "install Python 3.11")
    return Finding("Python", Health.GOOD, f"{version} on {facts.system}")


def _tensorflow(facts: Facts) -> Finding:
    install = f"pip install 'tensorflow-cpu=={_TESTED_TENSORFLOW}.*'"
    if isinstance(facts.tensorflow, Broken):
        if "TensorFlow" not in facts.versions:
            return Finding("TensorFlow", Health.PROBLEM, "not installed", install)
        detail = f"{facts.versions['TensorFlow']} cannot be imported: {facts.tensorflow.reason}"
        return Finding(
            "TensorFlow", Health.PROBLEM, detail, install.replace("install", "install --force-reinstall")
        )
    version = str(facts.tensorflow["version"])
    if not version.startswith(f"{_TESTED_TENSORFLOW}."):
        return Finding("TensorFlow", Health.NOTE, f"{version}; tested with {_TESTED_TENSORFLOW}", install)
    return Finding("TensorFlow", Health.GOOD, version)


def _keras(facts: Facts) -> list[Finding]:
    if isinstance(facts.tensorflow, Broken):
        return []
    version = str(facts.tensorflow["keras"])
    if not version.startswith("3."):
        return [Finding("Keras", Health.PROBLEM, f"{version}; Keras 3 is needed", "pip install 'keras>=3'")]
    return [Finding("Keras", Health.GOOD, version)]


def _horovod(facts: Facts) -> list[Finding]:
    found = facts.horovod
    if isinstance(found, Broken):
        if isinstance(facts.tensorflow, Broken):
            return [
                Finding(
                    "Horovod",
                    Health.PROBLEM,
                    "cannot be checked without TensorFlow",
                    "install TensorFlow first",
                )
            ]
        version = facts.versions.get("Horovod")
        detail = f"{version} cannot be imported: {found.reason}" if version else "not installed"
        return [
            Finding(
                "Horovod", Health.PROBLEM, f"{detail} (--distribution_strategy=Local works without)", _SETUP
            ),
            *_build_tools(facts),
        ]
    built_with = [name for name in ("gloo", "mpi") if found[name]]
    if found["nccl"]:
        built_with.append(f"NCCL {_nccl_version(int(found['nccl']))}")
    detail = f"{found['version']} with {', '.join(built_with) or 'no transport'}"
    if not found["gloo"]:
        return [Finding("Horovod", Health.PROBLEM, f"{detail}; Gloo is needed", _SETUP), *_build_tools(facts)]
    if not found["ours"]:
        return [
            Finding(
                "Horovod",
                Health.NOTE,
                f"{detail}, {STOCK_HOROVOD}",
                f"{_SETUP} builds Horovod with the changes that cure this",
            ),
            *_build_tools(facts),
        ]
    return [Finding("Horovod", Health.GOOD, f"{detail}, built with our changes to its failure path")]


def _nccl_version(code: int) -> str:
    """23203 is 2.32.3, as nccl.h writes it since 2.9."""
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}"


def _build_tools(facts: Facts) -> list[Finding]:
    packages = {"g++": "g++", "cmake": "cmake", "make": "make"}
    missing = [tool for tool in packages if tool not in facts.tools]
    if not missing:
        return []
    command = f"apt-get install {' '.join(packages[tool] for tool in missing)}"
    return [Finding("build tools", Health.NOTE, f"missing to build Horovod: {', '.join(missing)}", command)]


def _libraries(facts: Facts) -> list[Finding]:
    findings = []
    for name in ("NumPy", "grpc", "msgspec", "rich"):
        version = facts.versions.get(name)
        package = _DISTRIBUTIONS[name][0]
        if version:
            findings.append(Finding(name, Health.GOOD, version))
        else:
            findings.append(Finding(name, Health.PROBLEM, "not installed", f"pip install {package}"))
    return findings


def _kubernetes(facts: Facts) -> Finding:
    version = facts.versions.get("kubernetes client")
    if version:
        return Finding("kubernetes client", Health.GOOD, version)
    return Finding(
        "kubernetes client",
        Health.NOTE,
        "not installed; needed only to run jobs on a cluster",
        "pip install 'kubernetes>=35,<37'",
    )


def _machine(facts: Facts) -> Finding:
    detail = f"{facts.cores} cores, {facts.memory_gib:.1f} GiB of memory"
    # A TensorFlow process takes about half a gigabyte before it has seen a model.
    if facts.memory_gib < 2:
        return Finding(
            "machine", Health.NOTE, f"{detail}; few workers will fit", "use a smaller --num_workers"
        )
    return Finding("machine", Health.GOOD, detail)


def _devices(facts: Facts) -> list[Finding]:
    if isinstance(facts.tensorflow, Broken):
        return []
    devices: list[str] = list(facts.tensorflow["devices"])
    gpus = devices.count("GPU")
    for_gpus = not isinstance(facts.horovod, Broken) and facts.horovod["nccl"]
    if not gpus and for_gpus:
        assert not isinstance(facts.horovod, Broken)
        if facts.horovod["driver"]:
            why, cure = "TensorFlow sees no GPU", "pip install 'tensorflow[and-cuda]==2.21.*'; nvidia-smi"
        else:
            why, cure = "NVIDIA's driver (libcuda.so.1) is not here", "install the driver of the GPU"
        detail = f"CPU; Horovod is built for GPUs, but {why}: it trains on the CPU, over Gloo"
        return [Finding("devices", Health.NOTE, detail, cure)]
    if not gpus:
        return [Finding("devices", Health.GOOD, "CPU; TensorFlow sees no GPU")]
    detail = f"CPU and {gpus} GPU{'s' if gpus > 1 else ''}"
    if not for_gpus and not isinstance(facts.horovod, Broken):
        cure = "HOROVOD_GPU_OPERATIONS=NCCL scripts/setup"
        return [
            Finding("devices", Health.NOTE, f"{detail}; gradients travel over the CPU without NCCL", cure)
        ]
    return [Finding("devices", Health.GOOD, detail)]


def _versions() -> dict[str, str]:
    versions = {}
    for name, distributions in _DISTRIBUTIONS.items():
        for distribution in distributions:
            try:
                versions[name] = importlib.metadata.version(distribution)
                break
            except importlib.metadata.PackageNotFoundError:
                continue
    return versions
