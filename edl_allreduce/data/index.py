"""Where the records of a file begin: found once, kept beside the file, checked before use.

The index of ``data-00003`` is ``.data-00003.idx`` in the same directory or, when that cannot be
written, a file in the user's cache directory. Several workers may build it at once: each writes
its own temporary file and renames it, and all write the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edl_allreduce.data.files import cannot_read
from edl_allreduce.errors import DataError
from edl_allreduce.files import AtomicFile
from edl_allreduce.reading import small_file

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


@dataclass(frozen=True)
class _Stamp:
    """What must be equal for a stored index to belong to the file as it is now."""

    kind: str
    size: int
    mtime_ns: int


def load_or_build(
    path: Path, kind: str, build: Callable[[Path], FileIndex], fits: Callable[[FileIndex, int], bool]
) -> FileIndex:
    """The stored index when it fits the file, else a new one, which is then stored.

    Anybody who may write beside the data may have written the index: `fits` says whether a file of that
    size can have it.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise cannot_read(path, error) from error
    stamp = _Stamp(kind, stat.st_size, stat.st_mtime_ns)
    places = (sidecar_path(path), _cache_path(path))
    for place in places:
        stored = _load(place, stamp)
        if stored is not None and fits(stored, stamp.size):
            return stored
    try:
        index = build(path)
    except OSError as error:
        raise cannot_read(path, error) from error
    after = path.stat()
    if (after.st_size, after.st_mtime_ns) != (stamp.size, stamp.mtime_ns):
        raise DataError(
            f"{path}: changed while it was indexed; wait until it is completely written, then try again"
        )
    for place in places:
        if _store(place, stamp, index):
            break
    return index


def refuse_tear(path: Path, tear: Tear) -> DataError:
    return DataError(
        f"{path}: {tear.reason} at offset {tear.offset}, after {tear.whole_records} whole records; "
        f"{tear.extent}. Write the file again, or pass --max_bad_records=N to count what is broken and go "
        "on without it"
    )


def sidecar_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.idx")


def _cache_path(path: Path) -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]
    return Path(base) / "edl_allreduce" / "index" / f"{name}.idx"


def _load(place: Path, stamp: _Stamp) -> FileIndex | None:
    """None for anything that is not a whole index of exactly this file: it will be built again."""
    limit = len(_MAGIC) + _HEADER_BYTES + _MOST_PER_BYTE * stamp.size
    try:
        data = small_file(place, limit)
        if not data.startswith(_MAGIC):
            return None
        line, _, payload = data[len(_MAGIC) :].partition(b"\n")
        header: dict[str, Any] = json.loads(line)
        if header["stamp"] != asdict(stamp) or header["crc32"] != zlib.crc32(payload):
            return None
        table = np.frombuffer(payload, dtype="<i8").reshape(header["shape"]).astype(np.int64, copy=False)
        tear = Tear(**header["tear"]) if header["tear"] is not None else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return FileIndex(table, tear) if tear is None or tear.fits(stamp.size) else None


def _store(place: Path, stamp: _Stamp, index: FileIndex) -> bool:
    payload = index.table.astype("<i8", copy=False).tobytes()
    header = {
        "stamp": asdict(stamp),
        "shape": list(index.table.shape),
        "crc32": zlib.crc32(payload),
        "tear": asdict(index.tear) if index.tear is not None else None,
    }
    try:
        if place.name.startswith("."):
            writable = place.parent.is_dir()
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            writable = True
        if not writable:
            return False
        with AtomicFile(place, durable=False) as file:  # what a power cut damages is noticed and built again
            file.stream.write(_MAGIC + json.dumps(header).encode() + b"\n" + payload)
    except OSError:
        return False  # A read-only place is no reason to stop: the next one is tried, or none is kept.
    return True
