"""Where the records of a file begin: found once, kept beside the file, checked before use.

The index of ``data-00003`` is ``.data-00003.idx`` in the same directory or, when that cannot be
written, a file in the user's cache directory. Several workers may build it at once: each writes
its own temporary file and renames it, and all write the same bytes. That of an object is kept in
the cache directory, and beside the object where that may be written.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edl_allreduce.data.files import DataFile, DataPath, cannot_read, for_each
from edl_allreduce.errors import DataError, StorageError, StorageRefused
from edl_allreduce.files import AtomicFile
from edl_allreduce.reading import small_file
from edl_allreduce.storage.remote import store
from edl_allreduce.storage.url import Object

log = logging.getLogger(__name__)

_MAGIC = b"edl-index-1 "
_HEADER_BYTES = 64 * 1024
_MOST_PER_BYTE = 8
"""Bytes of an index per byte of data, at most: two numbers for a line of two bytes."""


@dataclass(frozen=True)
class Tear:
    """The place after which a file could not be understood, and why."""

    offset: int
    whole_records: int
    reason: str
    lost_bytes: int
    """From there to the end of the file."""
    counted: int
    """Records that stand for what is lost; reading them fails."""

    @property
    def lost_records(self) -> int:
        """How many more are lost than are counted: an estimate from the size of those before."""
        if not self.whole_records:
            return 0
        return max(0, round(self.lost_bytes * self.whole_records / self.offset) - self.counted)

    def fits(self, size: int) -> bool:
        """Whether a file of this size can have it; the numbers may have been read from anywhere."""
        numbers = (self.offset, self.whole_records, self.lost_bytes, self.counted)
        return (
            all(type(number) is int for number in numbers)
            and isinstance(self.reason, str)
            and 0 <= self.offset <= size
            and self.offset + self.lost_bytes == size
            and 0 <= self.whole_records <= size
            and 1 <= self.counted <= max(1, size)
            and (self.offset > 0 or not self.whole_records)
        )

    @property
    def extent(self) -> str:
        more = f", about {self.lost_records} more records are lost" if self.lost_records else ""
        return f"the last {self.lost_bytes} bytes of the file cannot be read{more}"

    def __str__(self) -> str:
        return f"{self.reason}; {self.extent}"


@dataclass(frozen=True)
class FileIndex:
    """``table`` means what the format says; ``tear`` is set when the file has a broken end."""

    table: npt.NDArray[np.int64]
    tear: Tear | None = None


Stamp = dict[str, str | int]
"""What must be equal for a stored index to belong to the file as it is now."""

Build = Callable[[DataPath], FileIndex]
Fits = Callable[[FileIndex, int], bool]
"""Whether a file of that size can have it: whoever may write beside the data may have written the index."""


def load_all(files: Sequence[DataFile], kind: str, build: Build, fits: Fits) -> list[FileIndex]:
    """The index of each file: the stored one when it fits the file, else a new one, which is then stored."""

    def load(file: DataFile) -> FileIndex:
        if isinstance(file.path, Object):
            return _of_object(file.path, kind, build, fits)
        return _of_file(file.path, kind, build, fits)

    return for_each(files, load, remote=any(file.is_remote for file in files))


def _of_file(path: Path, kind: str, build: Build, fits: Fits) -> FileIndex:
    stamp = _stamp(path, kind)
    size = int(stamp["size"])
    places = (sidecar_path(path), _cache_path(os.fsencode(path.resolve())))
    for place in places:
        stored = _load(place, stamp, size)
        if stored is not None and fits(stored, size):
            return stored
    try:
        index = build(path)
    except OSError as error:
        raise cannot_read(path, error) from error
    if _stamp(path, kind) != stamp:
        raise DataError(
            f"{path}: changed while it was indexed; wait until it is completely written, then try again"
        )
    for place in places:
        if _store(place, stamp, index):
            break
    return index


def _stamp(path: Path, kind: str) -> Stamp:
    try:
        status = path.stat()
    except OSError as error:
        raise cannot_read(path, error) from error
    return {"kind": kind, "size": status.st_size, "mtime_ns": status.st_mtime_ns}


def _of_object(path: Object, kind: str, build: Build, fits: Fits) -> FileIndex:
    """Kept on this machine, and beside the object for the next one where that can be written."""
    stamp: Stamp = {"kind": kind, "size": path.size, "version": path.version}
    local, beside = _cache_path(str(path).encode()), path.parent / f".{path.name}.idx"
    stored = _load(local, stamp, path.size)
    if stored is not None and fits(stored, path.size):
        return stored
    try:
        found = _decode(store().whole(beside, _most_bytes(path.size)), stamp, path.size)
    except StorageRefused:
        found = None
    index = found if found is not None and fits(found, path.size) else build(path)
    _store(local, stamp, index)
    if index is not found:
        try:
            store().write(beside, _encode(stamp, index))
        except StorageError as error:
            log.info("no index is kept beside %s: %s", path, error)
    return index


def refuse_tear(path: DataPath, tear: Tear) -> DataError:
    return DataError(
        f"{path}: {tear.reason} at offset {tear.offset}, after {tear.whole_records} whole records; "
        f"{tear.extent}. Write the file again, or pass --max_bad_records=N to count what is broken and go "
        "on without it"
    )


def sidecar_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.idx")


def _cache_path(what: bytes) -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    name = hashlib.sha256(what).hexdigest()[:32]
    return Path(base) / "edl_allreduce" / "index" / f"{name}.idx"


def _most_bytes(size: int) -> int:
    """Of the index of a file of this size."""
    return len(_MAGIC) + _HEADER_BYTES + _MOST_PER_BYTE * size


def _load(place: Path, stamp: Stamp, size: int) -> FileIndex | None:
    try:
        return _decode(small_file(place, _most_bytes(size)), stamp, size)
    except OSError:
        return None


def _decode(data: bytes, stamp: Stamp, size: int) -> FileIndex | None:
    """None for anything that is not a whole index of exactly this file: it will be built again."""
    try:
        if not data.startswith(_MAGIC):
            return None
        line, _, payload = data[len(_MAGIC) :].partition(b"\n")
        header: dict[str, Any] = json.loads(line)
        if header["stamp"] != stamp or header["crc32"] != zlib.crc32(payload):
            return None
        table = np.frombuffer(payload, dtype="<i8").reshape(header["shape"]).astype(np.int64, copy=False)
        tear = Tear(**header["tear"]) if header["tear"] is not None else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return FileIndex(table, tear) if tear is None or tear.fits(size) else None


def _encode(stamp: Stamp, index: FileIndex) -> bytes:
    payload = index.table.astype("<i8", copy=False).tobytes()
    header = {
        "stamp": stamp,
        "shape": list(index.table.shape),
        "crc32": zlib.crc32(payload),
        "tear": asdict(index.tear) if index.tear is not None else None,
    }
    return _MAGIC + json.dumps(header).encode() + b"\n" + payload


def _store(place: Path, stamp: Stamp, index: FileIndex) -> bool:
    try:
        if place.name.startswith("."):
            writable = place.parent.is_dir()
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            writable = True
        if not writable:
            return False
        with AtomicFile(place, durable=False) as file:  # what a power cut damages is noticed and built again
            file.stream.write(_encode(stamp, index))
    except OSError:
        return False  # A read-only place is no reason to stop: the next one is tried, or none is kept.
    return True
