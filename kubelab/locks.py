"""Locks between processes; the kernel releases them when the holder dies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold a lock file; wait for it as long as it takes."""
    file.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with file.open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if _is_still(file, handle.fileno()):
                yield
                return
        # Whoever held it before removed it: a lock on a file that nobody else sees is none.


def _is_still(file: Path, handle: int) -> bool:
    try:
        return os.path.samestat(file.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False
