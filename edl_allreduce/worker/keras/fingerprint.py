"""What a worker would train, in parts that can be compared: files, variables, optimizer, versions.

The master compares them before a worker may join (`core.course`): gradients of two different models or losses
can be averaged without any error, and the result is worth nothing.
"""

from __future__ import annotations

import math
import os
import platform
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import tensorflow as tf

from edl_allreduce.cluster.pinned import OURS, digest
from edl_allreduce.core.course import DIGEST
from edl_allreduce.data.files import versions_of
from edl_allreduce.data.source import RecordSource
from edl_allreduce.spec import JobSpec
from edl_allreduce.worker.keras.pinned_imports import PinnedLoader

SHORT = 16
FLAGS = (
    *("model_params", "loss", "optimizer", "feed", "callbacks", "eval_metrics_fn", "elastic_batch"),
    *("mixed_precision", "on_nan", "evaluation_steps", "reproducible", "bucket_mb"),
    "gradient_compression",
)
"""Flags that change what is trained, and that no other part shows."""


def of_model(spec: JobSpec, path: Path, model: Any, optimizer: Any) -> dict[str, str]:
    """For a model of the zoo; `path` is the model file. Call it before any state is restored."""
    zoo = Path(spec.model_zoo or ".").resolve()
    return {
        **{f"--{name}": str(getattr(spec, name)) for name in FLAGS},
        **_files([zoo, path.parent]),
        "variables": _variables(model.variables),
        **_optimizer(optimizer),
        **_versions(),
    }


def of_objects(source: RecordSource) -> dict[str, str]:
    """For data in object storage: a worker that finds another version of an object must not join the rest."""
    versions = versions_of(getattr(source, "files", ()))  # a reader of the model file has none
    return {"versions of the data's objects": f"{DIGEST}{versions}"} if versions else {}


ARITHMETIC = ("avx", "fma", "f16c", "amx", "sse4", "asimd", "sve", "bf16")
"""How flags of a processor begin that decide which instructions TensorFlow computes with."""
SETTINGS = ("TF_ENABLE_ONEDNN_OPTS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "TF_XLA_FLAGS")


def of_bits(spec: JobSpec, probe: str, processor: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """Of a reproducible job: all that decides to which bits a worker comes, as far as one can tell.

    `probe`: what the first records really gave here; it tells also of what the other parts do not show.
    """
    return {
        "--virtual_workers": str(spec.virtual_ranks),
        "threads (--threads_per_worker)": str(tf.config.threading.get_intra_op_parallelism_threads()),
        "processor": f"{platform.machine()} {' '.join(_instructions(processor))}",
        "devices": ", ".join(sorted({d.device_type for d in tf.config.list_physical_devices()})),
        **{name: os.environ.get(name, "not set") for name in SETTINGS},
        **_versions(),
        "bits of a probe step": DIGEST + probe,
    }


def _instructions(processor: Path) -> list[str]:
    try:
        lines = processor.read_text().splitlines()
    except OSError:
        return ["unknown"]
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return sorted({flag for flag in flags.partition(":")[2].split() if flag.startswith(ARITHMETIC)})


def of_files(spec: JobSpec, path: Path) -> dict[str, str]:
    """For jobs that only apply a model: its weights come from a checkpoint, which names them."""
    zoo = Path(spec.model_zoo or ".").resolve()
    return {"--model_params": spec.model_params, **_files([zoo, path.parent]), **_versions()}


def of_script() -> dict[str, str]:
    """For a user's own loop: the script and what it imported from its own directory."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    return {**(_files([Path(script).resolve().parent]) if script else {}), **_versions()}


def of_compiled(model: Any, optimizer: Any) -> dict[str, str]:
    """For a script that trains a compiled model with `elastic.fit`."""
    return {**of_script(), "variables": _variables(model.variables), **_optimizer(optimizer)}


def _files(roots: list[Path]) -> dict[str, str]:
    return {
        f"file {_name(path, roots)}": DIGEST + digest(text)[:SHORT]
        for path, text in sorted(_imported(roots, list(sys.modules.values())))
    }


def _name(path: Path, roots: Iterable[Path]) -> str:
    """The same on machines that keep the zoo in different places."""
    return str(next(path.relative_to(root) for root in roots if path.is_relative_to(root)))


def _imported(roots: list[Path], modules: list[ModuleType]) -> Iterator[tuple[Path, bytes]]:
    """Source files below the roots that were really imported, with the text that was run."""
    installed = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    seen = set()
    for module in modules:
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py"):
            continue
        path = Path(file).resolve()
        foreign = any(path.is_relative_to(place) for place in (*installed, OURS))
        if path in seen or foreign or not any(path.is_relative_to(root) for root in roots):
            continue
        seen.add(path)
        text = _text(module, file)
        if text is not None:
            yield path, text


def _text(module: ModuleType, file: str) -> bytes | None:
    loader = getattr(module, "__loader__", None)
    try:
        return loader.get_data(file) if isinstance(loader, PinnedLoader) else Path(file).read_bytes()
    except OSError:
        return None  # gone since it was imported; the others may have it still, so nothing is claimed


def _variables(variables: Sequence[Any]) -> str:
    """Names are left out: Keras counts them, so they depend on what was built before."""
    shapes = [f"{tuple(v.shape)} {v.dtype}" for v in variables]
    numbers = sum(math.prod(v.shape) for v in variables)
    return f"{len(shapes)} with {numbers} numbers, {digest(';'.join(shapes).encode())[:8]}"


def _optimizer(optimizer: Any) -> dict[str, str]:
    try:
        config = optimizer.get_config()
    except Exception:  # noqa: BLE001  a user's own optimizer or schedule; its class and file are compared
        config = {}
    kind = type(optimizer)
    parts = {f"optimizer {name}": _plain(value) for name, value in config.items() if name != "name"}
    return {"optimizer": f"{kind.__module__}.{kind.__qualname__}", **parts}


def _plain(value: Any) -> str:
    """Without addresses of objects, which differ from process to process."""
    if value is None or isinstance(value, bool | int | float | str):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {_plain(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_plain, value)) + "]"
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return str(value.item())
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def _versions() -> dict[str, str]:
    return {"TensorFlow": tf.__version__, "Keras": keras.__version__}
