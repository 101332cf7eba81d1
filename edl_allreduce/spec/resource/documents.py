"""The spelling of PaddlePaddle EDL's documents: `trainer.min-instance` and its neighbours, read as ours.

What meant something to parameter servers only is left out, with a warning.
"""

from __future__ import annotations

import copy
import shlex
from collections.abc import Mapping
from typing import Any, Final

from edl_allreduce.errors import UsageError
from edl_allreduce.spec.resource.names import Object
from edl_allreduce.spec.resource.places import FIELDS
from edl_allreduce.spec.resource.untyped import checked, look, put, text_map

MOVED: Final[Mapping[tuple[str, ...], tuple[str, ...]]] = {
    ("trainer", "min-instance"): ("workers", "min"),
    ("trainer", "max-instance"): ("workers", "max"),
    ("trainer", "resources"): ("workers", "resources"),
    ("trainer", "passes"): ("training", "numEpochs"),
    ("passes",): ("training", "numEpochs"),
    ("VolumeMounts",): ("volumeMounts",),
    ("NodeSelector",): ("workers", "nodeSelector"),
}
"""From the documents' place to ours."""

WITHOUT_EFFECT: Final[Mapping[tuple[str, ...], str]] = {
    ("pserver",): "there are no parameter servers: workers average gradients among themselves",
    ("port",): "the ports of parameter servers; the master's own is master.port",
    ("ports_num",): "the ports of parameter servers",
    ("ports_num_for_sparse",): "the ports of parameter servers",
    ("imagePullSecrets",): "give them to the service account of the pods",
    ("hostNetwork",): "pods have addresses of their own",
    ("host_network",): "pods have addresses of their own",
    ("trainer", "etcd-endpoint"): "there is no etcd: workers talk to their master",
    ("master", "etcd-endpoint"): "there is no etcd: workers talk to their master",
}
"""What is read, told and not used."""

FILLED_IN: Final[Mapping[tuple[str, ...], object]] = {("training", "numEpochs"): FIELDS["num_epochs"].default}
"""What the API server writes there when nobody did."""

OLD_GPU: Final = "alpha.kubernetes.io/nvidia-gpu"
GPU: Final = "nvidia.com/gpu"


def in_our_spelling(given: Object) -> tuple[Object, tuple[str, ...]]:
    """The spec with every field in its own place, and what the user should be told."""
    spec = copy.deepcopy(given)
    warnings = [
        f"spec.{'.'.join(path)} has no effect: {why}."
        for path, why in WITHOUT_EFFECT.items()
        if _taken(spec, path) is not None
    ]
    tolerant = _taken(spec, ("fault_tolerant",))
    if tolerant is not None and not checked(tolerant, bool, ("fault_tolerant",)):
        warnings.append("spec.fault_tolerant=false has no effect: every job survives the loss of workers.")
    if "trainer" in spec:
        _size_of_trainers(spec)
        _command(spec)
    for path, ours in MOVED.items():
        _move(spec, path, ours)
    for kind in ("requests", "limits"):
        _renamed_gpu(spec, ("workers", "resources", kind))
    spec.pop("trainer", None)
    return spec, tuple(warnings)


def _taken(spec: Object, path: tuple[str, ...]) -> Any:
    """What stands there, taken out."""
    *above, last = path
    inner = look(spec, tuple(above)) if above else spec
    return inner.pop(last, None) if isinstance(inner, dict) else None


def _size_of_trainers(spec: Object) -> None:
    """The documents count from 0 and take a missing maximum for the minimum."""
    trainer = checked(spec["trainer"], dict, ("trainer",))
    sizes = ("min-instance", "max-instance")
    least, most = (checked(trainer.get(key, 0), int, ("trainer", key)) for key in sizes)
    if "max-instance" not in trainer and "min-instance" not in trainer:
        return
    trainer["min-instance"] = max(least, 1)
    trainer["max-instance"] = most or max(least, 1)


def _command(spec: Object) -> None:
    """`entrypoint` runs in `workspace`, which is also where Python finds its modules."""
    entry, workspace = _taken(spec, ("trainer", "entrypoint")), _taken(spec, ("trainer", "workspace"))
    if entry is None:
        return
    if spec.get("jobCommand"):
        raise UsageError("spec.jobCommand and spec.trainer.entrypoint say the same; give one of them")
    command = checked(entry, str, ("trainer", "entrypoint"))
    if workspace:
        place = shlex.quote(checked(workspace, str, ("trainer", "workspace")))
        path = f'export PYTHONPATH={place}"${{PYTHONPATH:+:$PYTHONPATH}}"'
        command = shlex.join(["sh", "-c", f"cd {place} && {path} && exec {command}"])
    spec["jobCommand"] = command


def _move(spec: Object, path: tuple[str, ...], ours: tuple[str, ...]) -> None:
    value = _taken(spec, path)
    if value is None:
        return
    if look(spec, ours) not in (None, FILLED_IN.get(ours)):
        raise UsageError(f"spec.{'.'.join(path)} and spec.{'.'.join(ours)} say the same; give one of them")
    put(spec, ours, value)


def _renamed_gpu(spec: Object, path: tuple[str, ...]) -> None:
    amounts = text_map(spec, path)
    if amounts is not None and OLD_GPU in amounts:
        put(spec, path, {GPU if name == OLD_GPU else name: amounts[name] for name in amounts})
