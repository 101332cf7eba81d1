"""Objects that are read at any place, as fast as files from the second time on.

An object is fetched in blocks, which stay in a directory of this machine that all its processes share:

    <cache>/<digest of URL and version>/<number>     one block
                                        whole        all of it, for readers that want a file

A block appears under its name when it is whole, and nobody ever changes it: another content is another
version, hence another directory. Blocks that were not used for longest go first when there are too many.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from edl_allreduce import clock, files
from edl_allreduce.contract import CACHE_DIR, CACHE_GIB
from edl_allreduce.errors import DataError, UsageError
from edl_allreduce.storage.remote import store
from edl_allreduce.storage.url import Object

log = logging.getLogger(__name__)

BLOCK_BYTES: Final = 1 << 20
"""Shuffled reading fetches a block for one record, so that it must be small; one request fetches several."""
MOST_BLOCKS: Final = 16
"""Of one request, when reading goes straight on."""
THREADS: Final = 16
"""Requests at the same time, when records of many places are wanted."""
MOST_BYTES: Final = 64 << 30
"""What the cache may take when nobody says another number, and at most half of the disk's room."""
AUDIT: Final = "audit"
"""A folder beside those of objects: diaries on their way (`worker.loop.audit_upload`)."""
_WHOLE: Final = "whole"
_FRESH_SECONDS: Final = 60.0
"""How exactly it is known when a block was used."""


class BlockCache:
    """A directory of blocks with an upper bound."""

    def __init__(self, directory: Path, limit: int) -> None:
        self.directory = directory
        self.limit = limit
        self._lock = threading.Lock()
        self._since_sweep = 0
        self.sweep()

    def folder(self, found: Object) -> Path:
        digest = hashlib.sha256(f"{found}\0{found.version}\0{found.size}".encode()).hexdigest()[:32]
        return self.directory / digest

    def keep(self, path: Path, data: bytes) -> None:
        """Trouble is no reason to stop: what cannot be kept is fetched again."""
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            files.write(path, data, private=True)
        except OSError as error:
            log.warning("%s cannot be kept (%s); it is fetched whenever it is needed", path, error.strerror)
            return
        self.grown(len(data))

    def grown(self, count: int) -> None:
        """Look for the oldest now and then: not at each block, since several processes fill the cache."""
        with self._lock:
            self._since_sweep += count
            due = self._since_sweep > self.limit // 32
            if due:
                self._since_sweep = 0
        if due:
            self.sweep()

    def sweep(self) -> None:
        """Remove what was not used for longest, until nine tenths of the limit are left."""
        fresh = clock.wall() - _FRESH_SECONDS
        for folder in _entries(self.directory):
            if folder.name != AUDIT:
                _remove_if_empty(Path(folder.path), before=fresh)
        found = list(_kept_files(self.directory))
        total = sum(size for _, size, _ in found)
        if total <= self.limit:
            return
        for used, size, path in sorted(found):
            if used > fresh and Path(path).name == _WHOLE:
                continue  # somebody was given its name, and has not opened it yet
            with suppress(OSError):
                os.unlink(path)  # noqa: PTH108  whoever has it open reads on
                total -= size
            if total <= self.limit * 9 // 10:
                return


def _remove_if_empty(folder: Path, before: float) -> None:
    """Unless somebody just made it in order to fill it."""
    with suppress(OSError):  # it is not empty
        if folder.stat().st_mtime < before:
            folder.rmdir()


def _kept_files(directory: Path) -> Iterator[tuple[float, int, str]]:
    """When each file of the cache was used last, its bytes, and its path."""
    for folder in _entries(directory):
        for entry in _entries(Path(folder.path)):
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                yield status.st_mtime, status.st_size, entry.path


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except OSError:
        return []


@functools.cache
def cache() -> BlockCache:
    """That of this process."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    directory = Path(os.environ.get(CACHE_DIR) or Path(base) / "edl_allreduce" / "objects")
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)  # data may be nobody else's business
        return BlockCache(directory, _limit(directory))
    except OSError as error:
        raise UsageError(
            f"{directory} cannot be written ({error.strerror}), and what is read from object storage is kept "
            f"there; name another directory in {CACHE_DIR}"
        ) from error


def _limit(directory: Path) -> int:
    given = os.environ.get(CACHE_GIB, "")
    if not given:
        held = sum(size for _, size, _ in _kept_files(directory))
        return min(MOST_BYTES, (shutil.disk_usage(directory).free + held) // 2)
    try:
        gib = float(given)
    except ValueError:
        gib = 0
    if not gib > 0:
        raise UsageError(f"{CACHE_GIB}={given}: expected a number of GiB larger than 0")
    return int(gib * 2**30)


@functools.cache
def requests() -> ThreadPoolExecutor:
    """For requests of all objects."""
    return ThreadPoolExecutor(THREADS, thread_name_prefix="object-requests")


class OpenObject:
    """One object, read at any place by any number of threads."""

    def __init__(self, found: Object) -> None:
        self.object = found
        self.size = found.size
        self._store = store()
        self._cache = cache()
        self._folder = self._cache.folder(found)
        self._changed = threading.Condition()
        self._fetching: set[int] = set()
        self._next = 0
        self._ahead = 1

    def pread(self, length: int, offset: int) -> bytes:
        """Up to `length` bytes at `offset`; shorter only where the object ends."""
        stop = min(offset + length, self.size)
        parts: list[bytes] = []
        while offset < stop:
            number, begin = divmod(offset, BLOCK_BYTES)
            end = min(BLOCK_BYTES, stop - number * BLOCK_BYTES)
            parts.append(self._part(number, begin, end))
            offset += end - begin
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def expect(self, starts: Sequence[int], ends: Sequence[int]) -> None:
        """These ranges are wanted next: what is missing of them is fetched at the same time."""
        wanted = {
            number
            for start, end in zip(starts, ends, strict=True)
            for number in range(start // BLOCK_BYTES, (min(end, self.size) - 1) // BLOCK_BYTES + 1)
        }
        missing = sorted(number for number in wanted if not self._kept(number))
        if len(missing) > 1:
            for _ in requests().map(self._fetch_for_later, missing):
                pass

    def local_copy(self) -> Path:
        """All of it in one file, for readers that need one."""
        path = self._folder / _WHOLE
        if not self._is_fresh(path):
            if self.size > self._cache.limit:
                raise DataError(
                    f"{self.object}: is of a format that is read as one file, and its {self.size >> 20} MiB "
                    f"do not fit into the cache of {self._cache.limit >> 20} MiB; allow more with "
                    f"{CACHE_GIB}, or store the records as TFRecord, RecordIO or Parquet"
                )
            log.info("%s is fetched as a whole: its format is read as one file", self.object)
            self._folder.mkdir(mode=0o700, exist_ok=True)
            with files.AtomicFile(path, durable=False, private=True) as file:
                for start in range(0, self.size, MOST_BLOCKS * BLOCK_BYTES):
                    stop = min(self.size, start + MOST_BLOCKS * BLOCK_BYTES)
                    file.stream.write(self._store.read(self.object, start, stop))
                self._refuse_other_version()
            self._cache.grown(self.size)
        return path

    def _is_fresh(self, path: Path) -> bool:
        """Whether it is there; if so, no sweep takes it for a while."""
        try:
            os.utime(path)
            return path.stat().st_size == self.size
        except OSError:
            return False

    def close(self) -> None:
        """Nothing is held."""

    def _block_size(self, number: int) -> int:
        return min(BLOCK_BYTES, self.size - number * BLOCK_BYTES)

    def _path(self, number: int) -> Path:
        return self._folder / str(number)

    def _kept(self, number: int) -> bool:
        try:
            return self._path(number).stat().st_size == self._block_size(number)
        except OSError:
            return False

    def _part(self, number: int, begin: int, end: int) -> bytes:
        found = self._read_kept(number, begin, end)
        return found if found is not None else self._fetch(number)[begin:end]

    def _read_kept(self, number: int, begin: int, end: int) -> bytes | None:
        try:
            descriptor = os.open(self._path(number), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            status = os.fstat(descriptor)
            if status.st_size != self._block_size(number):
                return None  # damaged by a power cut
            if status.st_mtime < clock.wall() - _FRESH_SECONDS:
                with suppress(OSError):
                    os.utime(descriptor)
            return os.pread(descriptor, end - begin, begin)
        finally:
            os.close(descriptor)

    def _fetch(self, number: int) -> bytes:
        """A block, and those behind it while reading goes straight on. One thread fetches, others wait."""
        with self._changed:
            self._changed.wait_for(lambda: number not in self._fetching)
            known = self._read_kept(number, 0, self._block_size(number))
            if known is not None:
                return known
            run = self._run(number)
            self._fetching.update(run)
        try:
            start, stop = number * BLOCK_BYTES, min(self.size, run.stop * BLOCK_BYTES)
            data = self._store.read(self.object, start, stop)
            self._refuse_other_version()
            blocks = {n: data[n * BLOCK_BYTES - start : (n + 1) * BLOCK_BYTES - start] for n in run}
            for n, block in blocks.items():
                self._cache.keep(self._path(n), block)
            return blocks[number]
        finally:
            with self._changed:
                self._fetching.difference_update(run)
                self._changed.notify_all()

    def _fetch_for_later(self, number: int) -> None:
        """Into the cache: what many threads fetch at once must not be in memory at once."""
        self._fetch(number)

    def _run(self, number: int) -> range:
        """Which blocks to ask for: twice as many as the last time when this is where that one ended."""
        self._ahead = min(MOST_BLOCKS, 2 * self._ahead) if number == self._next and number else 1
        last = number + 1
        blocks = -(-self.size // BLOCK_BYTES)
        while (
            last < min(blocks, number + self._ahead) and last not in self._fetching and not self._kept(last)
        ):
            last += 1
        self._next = last
        return range(number, last)

    def _refuse_other_version(self) -> None:
        """Asked after reading: if it is the same now, it was the same then."""
        now = self._store.look(self.object.url)
        if (now.size, now.version) != (self.object.size, self.object.version):
            raise DataError(
                f"{self.object}: was replaced while the job reads it (version {self.object.version}, now "
                f"{now.version}); data must stay as it is while a job runs. Start the job again"
            )
