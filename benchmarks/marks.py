"""When each step of a peer ended, on disk at once: its processes are killed in the middle of things."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

from edl_allreduce import clock

RECORD = struct.Struct("<dqq")


@dataclass(frozen=True)
class Mark:
    """One finished step, as one process saw it."""

    now: float
    step: int
    size: int


class Marker:
    """Where one process writes its marks; the file's name is its pid."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{os.getpid()}.marks"
        self._descriptor = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)

    def mark(self, step: int, size: int) -> None:
        os.write(self._descriptor, RECORD.pack(clock.now(), step, size))


def read_marks(directory: Path) -> dict[int, list[Mark]]:
    """The marks of every process, by pid."""
    found = {}
    for path in sorted(directory.glob("*.marks")):
        raw = path.read_bytes()
        whole = len(raw) // RECORD.size * RECORD.size
        found[int(path.stem)] = [Mark(*fields) for fields in RECORD.iter_unpack(raw[:whole])]
    return found


def steps_per_second(marks: list[Mark], warm_up: int) -> float:
    """Over all steps after the first ones."""
    counted = marks[warm_up:]
    return (len(counted) - 1) / (counted[-1].now - counted[0].now)
