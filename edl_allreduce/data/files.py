"""Random reads from many files: few descriptors, few system calls, any number of threads."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from edl_allreduce.errors import DataError

MAX_GAP_BYTES = 64 * 1024
"""Unwanted bytes that are cheaper to read over than to skip with a second system call."""

MAX_RUN_BYTES = 8 * 1024 * 1024
"""Upper bound of one read, so that a batch of neighbours does not double the memory it needs."""


@dataclass(frozen=True)
class DataFile:
    """One file of a source; ``name`` is relative to the root, so that mount points do not matter."""

    path: Path
    name: str
    size: int

    @classmethod
    def of(cls, path: Path, root: Path) -> Self:
        return cls(path, os.path.relpath(path, root), path.stat().st_size)


class FilePool:
    """Open descriptors by path; those not in use beyond ``limit`` are closed, oldest first.

    pread is used rather than mmap: a file that shrinks while it is read gives a short read, which
    is an error with a name, and not a SIGBUS that kills the worker.
    """

    def __init__(self, limit: int = 128) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._fds: OrderedDict[Path, tuple[int, int]] = OrderedDict()  # path -> (descriptor, users)
        self._closed = False

    @contextmanager
    def open(self, path: Path) -> Iterator[int]:
        fd = self._acquire(path)
        try:
            yield fd
        finally:
            self._release(path)

    def close(self) -> None:
        """Close what is idle now; a descriptor in use is closed when its reader is done."""
        with self._lock:
            self._closed = True
            self._trim(0)

    def _acquire(self, path: Path) -> int:
        with self._lock:
            if self._closed:
                raise DataError(f"{path}: the source was closed; open it again to read from it")
            if path in self._fds:
                fd, users = self._fds.pop(path)
            else:
                try:
                    fd, users = os.open(path, os.O_RDONLY | os.O_CLOEXEC), 0
                except OSError as error:
                    raise cannot_read(path, error) from error
            self._fds[path] = (fd, users + 1)
            self._trim(self._limit)
            return fd

    def _release(self, path: Path) -> None:
        with self._lock:
            fd, users = self._fds[path]
            self._fds[path] = (fd, users - 1)
            self._trim(0 if self._closed else self._limit)

    def _trim(self, limit: int) -> None:
        excess = len(self._fds) - limit
        if excess <= 0:
            return
        for path in [p for p, (_, users) in self._fds.items() if users == 0][:excess]:
            os.close(self._fds.pop(path)[0])


def pread(fd: int, length: int, offset: int) -> bytes:
    """Up to ``length`` bytes at ``offset``; shorter only when the file ends."""
    data = os.pread(fd, length, offset)
    if len(data) == length or not data:
        return data
    parts = [data]  # Linux caps one read at 2 GiB and network file systems may stop earlier.
    have = len(data)
    while have < length and (data := os.pread(fd, length - have, offset + have)):
        parts.append(data)
        have += len(data)
    return b"".join(parts)


def read_spans(fd: int, starts: Sequence[int], ends: Sequence[int]) -> list[bytes]:
    """The bytes of each range [start, end), in ascending order; near ones come with one system call.

    A range that the file no longer covers comes out shorter. Plain Python: shuffled reading asks for a
    handful of ranges at a time, and setting up NumPy for so few would cost more than it saves.
    """
    found: list[bytes] = []
    count = len(starts)
    first = 0
    while first < count:
        base, stop = starts[first], ends[first]
        last = first + 1
        while last < count and starts[last] - stop <= MAX_GAP_BYTES and ends[last] - base <= MAX_RUN_BYTES:
            stop = ends[last]
            last += 1
        data = pread(fd, stop - base, base)
        if last == first + 1:
            found.append(data)
        else:
            found += [data[starts[at] - base : ends[at] - base] for at in range(first, last)]
        first = last
    return found


def cannot_read(path: Path, error: OSError) -> DataError:
    return DataError(
        f"{path}: cannot be read ({error.strerror or error}); check that it exists here, that this user may "
        "read it and, in a cluster, that the volume is mounted in every pod"
    )
