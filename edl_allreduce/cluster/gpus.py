"""Which GPU a worker of this machine uses: one worker per GPU as long as there are enough."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"
GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"


def on_this_machine(environ: Mapping[str, str], devices: Path = Path("/dev")) -> list[str]:
    """As CUDA names them: those that the environment allows, else all that NVIDIA's driver shows."""
    allowed = environ.get(VISIBLE)
    if allowed is not None:
        return [name.strip() for name in allowed.split(",") if name.strip() not in ("", "-1", "NoDevFiles")]
    # CUDA counts from 0 whatever the numbers of the files are: a container may have /dev/nvidia3 only.
    found = [path for path in devices.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]
    return [str(number) for number in range(len(found))]


def least_used(gpus: Sequence[str], in_use: Iterable[str]) -> str | None:
    """The one with the fewest workers, of equals the first; None where there is none."""
    workers = Counter(in_use)
    return min(gpus, key=lambda gpu: workers[gpu], default=None)


def environment(gpu: str | None, environ: Mapping[str, str]) -> dict[str, str]:
    """What a worker with this GPU gets.

    TensorFlow takes all memory of every GPU that it sees, which would leave nothing for another worker.
    """
    if gpu is None:
        return {}
    return {VISIBLE: gpu, GROWTH: environ.get(GROWTH, "true")}
