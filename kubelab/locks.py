"""Locks between processes; the kernel releases them when the holder dies."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold a lock file; wait for it as long as it takes."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
