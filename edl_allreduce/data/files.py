"""Random reads from many files: few descriptors, few system calls, any number of threads.

A file may be an object of object storage; `pread` and `read_spans` read from both.
"""

from __future__ import annotations

import hashlib
import io
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from edl_allreduce.errors import DataError
from edl_allreduce.storage.blocks import THREADS, OpenObject
from edl_allreduce.storage.url import Object

T = TypeVar("T")
R = TypeVar("R")

DataPath = Path | Object
Handle = int | OpenObject
"""What reads: a descriptor of a file, or an object."""

MAX_GAP_BYTES = 64 * 1024
"""Unwanted bytes that are cheaper to read over than to skip with a second system call."""

MAX_RUN_BYTES = 8 * 1024 * 1024
"""Upper bound of one read, so that a batch of neighbours does not double the memory it needs."""


@dataclass(frozen=True)
class DataFile:
    """One file of a source; ``name`` is relative to the root, so that mount points do not matter."""

    path: DataPath
    name: str
    size: int

    @classmethod
    def of(cls, path: Path, root: Path) -> Self:
        return cls(path, os.path.relpath(path, root), path.stat().st_size)

    @property
    def is_remote(self) -> bool:
        return isinstance(self.path, Object)

    def on_this_machine(self) -> Path:
        """For readers that need a file: an object is fetched as a whole."""
        return OpenObject(self.path).local_copy() if isinstance(self.path, Object) else self.path


def versions_of(files: Iterable[DataFile]) -> str:
    """A digest of what tells the contents of objects apart that have the same name and size; empty for files
    on a disk. It is no part of a fingerprint: the same data has another version in another bucket."""
    marks = [f"{file.name}\0{file.path.version}\0" for file in files if isinstance(file.path, Object)]
    return hashlib.sha256("".join(marks).encode("utf-8", "surrogateescape")).hexdigest()[:16] if marks else ""


class FilePool:
    """Open descriptors by path; those not in use beyond ``limit`` are closed, oldest first.

    pread is used rather than mmap: a file that shrinks while it is read gives a short read, which
    is an error with a name, and not a SIGBUS that kills the worker.
    """

    def __init__(self, limit: int = 128) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._fds: OrderedDict[DataPath, tuple[Handle, int]] = OrderedDict()  # path -> (descriptor, users)
        self._closed = False

    @contextmanager
    def open(self, path: DataPath) -> Iterator[Handle]:
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

    def _acquire(self, path: DataPath) -> Handle:
        with self._lock:
            if self._closed:
                raise DataError(f"{path}: the source was closed; open it again to read from it")
            if path in self._fds:
                fd, users = self._fds.pop(path)
            else:
                fd, users = _open(path), 0
            self._fds[path] = (fd, users + 1)
            self._trim(self._limit)
            return fd

    def _release(self, path: DataPath) -> None:
        with self._lock:
            fd, users = self._fds[path]
            self._fds[path] = (fd, users - 1)
            self._trim(0 if self._closed else self._limit)

    def _trim(self, limit: int) -> None:
        excess = len(self._fds) - limit
        if excess <= 0:
            return
        for path in [p for p, (_, users) in self._fds.items() if users == 0][:excess]:
            _close(self._fds.pop(path)[0])


def _open(path: DataPath) -> Handle:
    if isinstance(path, Object):
        return OpenObject(path)
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise cannot_read(path, error) from error


def _close(fd: Handle) -> None:
    if isinstance(fd, int):
        os.close(fd)
    else:
        fd.close()


@contextmanager
def opened(path: DataPath) -> Iterator[Handle]:
    """One file for one reader."""
    fd = _open(path)
    try:
        yield fd
    finally:
        _close(fd)


def size_of(fd: Handle) -> int:
    return os.fstat(fd).st_size if isinstance(fd, int) else fd.size


def head_of(path: DataPath, length: int) -> bytes:
    """Its first bytes."""
    with opened(path) as fd:
        return pread(fd, length, 0)


def for_each(files: Sequence[T], do: Callable[[T], R], *, remote: bool) -> list[R]:
    """In order; at the same time where each may have to wait for object storage."""
    if not remote or len(files) < 2:
        return [do(file) for file in files]
    with ThreadPoolExecutor(THREADS, thread_name_prefix="objects") as pool:
        return list(pool.map(do, files))


class Stream(io.RawIOBase):
    """An object as libraries want a file that is open."""

    def __init__(self, found: Object) -> None:
        super().__init__()
        self._object = OpenObject(found)
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._object.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = self._object.pread(len(buffer), self._at)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def pread(fd: Handle, length: int, offset: int) -> bytes:
    """Up to ``length`` bytes at ``offset``; shorter only when the file ends."""
    if not isinstance(fd, int):
        return fd.pread(length, offset)
    data = os.pread(fd, length, offset)
    if len(data) == length or not data:
        return data
    parts = [data]  # Linux caps one read at 2 GiB and network file systems may stop earlier.
    have = len(data)
    while have < length and (data := os.pread(fd, length - have, offset + have)):
        parts.append(data)
        have += len(data)
    return b"".join(parts)


def read_spans(fd: Handle, starts: Sequence[int], ends: Sequence[int]) -> list[bytes]:
    """The bytes of each range [start, end), in ascending order; near ones come with one system call.

    A range that the file no longer covers comes out shorter. Plain Python: shuffled reading asks for a
    handful of ranges at a time, and setting up NumPy for so few would cost more than it saves.
    """
    if not isinstance(fd, int):
        fd.expect(starts, ends)
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
