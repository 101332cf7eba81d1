"""Workers that run out of memory: the kernel refuses to give more, or ends them."""

from __future__ import annotations

import resource
from contextlib import suppress
from pathlib import Path

from chaos import processes
from edl_allreduce import clock

ROOM = 4 << 20
"""Bytes that are left to whoever runs out of them."""
ROOTS = ((Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"), (Path("/sys/fs/cgroup"), "memory.max"))
"""Of control groups for memory, in both versions, and the file with the limit."""


def refuse(pid: int) -> None:
    """From now on it may not map any more memory."""
    room = processes.address_space(pid) + ROOM
    with suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_AS, (room, resource.RLIM_INFINITY))


LINGER_SECONDS = 5.0
"""How long the last processes of a case may take to leave their group."""


class Group:
    """A control group that is as good as full: the kernel ends who asks for more in it."""

    def __init__(self, name: str) -> None:
        root, limit = next((r, file) for r, file in ROOTS if (r / "cgroup.procs").exists())
        self._root = root
        self._path = root / name
        self._path.mkdir()
        (self._path / limit).write_text(str(ROOM))

    def take(self, pid: int) -> None:
        with suppress(ProcessLookupError):
            (self._path / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        """Whoever survived it goes back."""
        with suppress(OSError):
            for pid in (self._path / "cgroup.procs").read_text().split():
                with suppress(ProcessLookupError):
                    (self._root / "cgroup.procs").write_text(pid)
        with suppress(OSError):  # busy while somebody ends in it: asked again when the case is over
            self._path.rmdir()


def clear(prefix: str) -> list[str]:
    """Remove the groups whose names begin so, of processes that are gone; returns those that stay."""
    left: list[Path] = []
    for _ in clock.polls(0.05, within=LINGER_SECONDS):
        left = [path for root, _ in ROOTS for path in root.glob(f"{prefix}*") if path.is_dir()]
        for path in left:
            with suppress(OSError):
                path.rmdir()
        left = [path for path in left if path.exists()]
        if not left:
            break
    return [str(path) for path in left]
