"""RecordIO as ElasticDL's data sets have it: chunks of records, each chunk checked and compressed.

A chunk is a header of five little-endian 32-bit numbers (magic, CRC32 of the body as stored, compressor,
size of the body as stored, number of records) and a body of (32-bit length, bytes) per record, stored as
it is, snappy-framed or gzipped.

ElasticDL's files have chunks of 32 MiB, and shuffled reading would unpack a chunk for a handful of its
records. So a chunk is unpacked once, to check it and to learn where its records lie; later a record is
read alone, also from snappy, whose frames (at most 64 KiB) unpack independently. Only gzip has no such
places: its unpacked chunks are kept in memory, up to a limit.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby
from types import TracebackType
from typing import Self

import cramjam
import numpy as np
import numpy.typing as npt

from edl_allreduce.data.cache import CACHE_BYTES, Cache
from edl_allreduce.data.files import DataFile, DataPath, Handle, opened, pread, read_spans, size_of
from edl_allreduce.data.index import FileIndex, Tear, load_all, refuse_tear
from edl_allreduce.data.limits import CHUNK_BYTES, gunzip
from edl_allreduce.data.sharded import ShardedBytes
from edl_allreduce.data.tfrecord import masked_crc
from edl_allreduce.errors import DataError
from edl_allreduce.files import AtomicFile

MAGIC = 0x01020304
_HEADER = struct.Struct("<5I")
_LENGTH = struct.Struct("<I")
_OLD_LAYOUT_COMPRESSORS = (1, 2, 3)

_STREAM_ID = b"\xff\x06\x00\x00sNaPpY"
_FRAME_COMPRESSED, _FRAME_PLAIN = 0x00, 0x01
_FRAME_BYTES = 64 * 1024
"""What a frame unpacks to, at most."""
_MOST_TORN = 1 << 20
"""How many records the header of a chunk may claim of which the file lacks a part: nobody can check it."""


class Compressor(IntEnum):
    """Numbers as stored in the chunk header."""

    NONE = 0
    SNAPPY = 1
    GZIP = 2


# Columns of the index table: one row per chunk.
_OFFSET, _CRC, _COMPRESSOR, _SIZE, _COUNT = range(5)
_TORN = -1  # in the compressor's column: this row stands for the broken end of the file
_IMPOSSIBLE = -2  # in the compressor's column: the chunk cannot have as many records as its header says


_Numbers = memoryview  # of int64 arrays: single numbers come out several times faster than from arrays


class _Damaged(Exception):
    """Why a chunk or a record cannot be used; becomes a BadRecord that knows the place."""


@dataclass(frozen=True)
class _Plain:
    """An unpacked chunk; record i is body[starts[i]:ends[i]]."""

    body: bytes
    starts: _Numbers
    ends: _Numbers

    @property
    def weight(self) -> int:
        return len(self.body) + self.starts.nbytes * 2


@dataclass(frozen=True)
class _Places:
    """Where each record of a chunk lies in the file: bytes [starts, ends), of which, unpacked, ``length``
    bytes after ``skip`` are the record. ``crc`` guards records of chunks that are not compressed; snappy
    frames carry their own."""

    snappy: bool
    starts: _Numbers
    ends: _Numbers
    skip: _Numbers
    length: _Numbers
    crc: _Numbers

    @property
    def weight(self) -> int:
        return self.starts.nbytes * 5


@dataclass(frozen=True)
class _Broken:
    """A chunk that failed its check; remembered, so that each of its records fails quickly."""

    reason: str
    weight: int = 1000


_Chunk = _Plain | _Places | _Broken


class RecordIOSource(ShardedBytes):
    """Whole records; the checksum of each chunk is verified before its first record is given out."""

    kind = "recordio"

    def __init__(self, files: Sequence[DataFile], *, allow_truncated: bool = False) -> None:
        indexes = load_all(files, self.kind, build_index, _fits)
        for file, index in zip(files, indexes, strict=True):
            if index.tear is not None and not allow_truncated:
                raise refuse_tear(file.path, index.tear)
        self._tables = [index.table for index in indexes]
        self._starts = [np.concatenate(([0], np.cumsum(table[:, _COUNT]))) for table in self._tables]
        self._cache: Cache[_Chunk] = Cache(CACHE_BYTES)
        counts = [int(starts[-1]) for starts in self._starts]
        super().__init__(files, counts, [index.tear for index in indexes])

    def close(self) -> None:
        super().close()
        self._cache.clear()

    def _offset(self, shard: int, local: int) -> int:
        """The offset of the record's chunk: what a person can find in the file."""
        return int(self._tables[shard][self._chunk_of(shard, local), _OFFSET])

    def _chunk_of(self, shard: int, local: int) -> int:
        return int(np.searchsorted(self._starts[shard], local, side="right")) - 1

    def _read_shard(self, shard: int, local: list[int]) -> list[bytes]:
        chunks = np.searchsorted(self._starts[shard], local, side="right") - 1
        firsts = self._starts[shard][chunks].tolist()
        records: list[bytes] = []
        with self._pool.open(self._files[shard].path) as fd:
            for number, group in groupby(chunks.tolist()):
                begin = len(records)
                wanted = slice(begin, begin + sum(1 for _ in group))
                rows = [at - firsts[begin] for at in local[wanted]]
                tear = self._tears[shard]
                if tear is not None and local[begin] >= tear.whole_records:
                    raise self._torn(shard, local[begin], tear)
                chunk = self._chunk(fd, shard, number)
                if isinstance(chunk, _Broken):
                    first = firsts[begin] + int(self._first[shard])
                    count = int(self._tables[shard][number, _COUNT])
                    raise self._bad(shard, local[begin], chunk.reason, same=range(first, first + count))
                if isinstance(chunk, _Plain):
                    records += [chunk.body[chunk.starts[row] : chunk.ends[row]] for row in rows]
                else:
                    records += self._read_places(fd, shard, chunk, rows, firsts[begin])
        return records

    def _chunk(self, fd: Handle, shard: int, number: int) -> _Chunk:
        known = self._cache.get((shard, number))
        if known is not None:
            return known
        try:
            chunk = _load_chunk(fd, self._tables[shard][number].tolist())
        except _Damaged as damage:
            chunk = _Broken(str(damage))
        self._cache.put((shard, number), chunk)
        return chunk

    def _read_places(
        self, fd: Handle, shard: int, places: _Places, rows: list[int], first: int
    ) -> list[bytes]:
        stored = read_spans(fd, [places.starts[row] for row in rows], [places.ends[row] for row in rows])
        records: list[bytes] = []
        for row, data in zip(rows, stored, strict=True):
            length = places.length[row]
            try:
                if places.snappy:
                    skip = places.skip[row]
                    record = _unframe(data)[skip : skip + length]
                    sound = len(record) == length
                else:
                    record = data
                    sound = len(record) == length and zlib.crc32(record) == places.crc[row]
                if not sound:
                    raise _Damaged("its bytes are not those that were there when the chunk was checked")
            except _Damaged as damage:
                raise self._bad(shard, first + row, str(damage), places.starts[row]) from damage
            records.append(record)
        return records


def _load_chunk(fd: Handle, row: list[int]) -> _Chunk:
    """Read, check and take apart one chunk."""
    offset, crc, compressor, size, count = row
    if compressor == _IMPOSSIBLE:
        raise _Damaged(
            f"the header of its chunk names more records than its {size} bytes hold; they count as one"
        )
    stored = pread(fd, size, offset + _HEADER.size)
    if len(stored) < size:
        raise _Damaged("the file is shorter than when it was opened")
    if zlib.crc32(stored) != crc:
        raise _Damaged(
            f"checksum {crc:08x} is stored for its chunk, whose bytes give {zlib.crc32(stored):08x}"
        )
    match Compressor(compressor):
        case Compressor.NONE:
            starts, ends = _spans(stored, count)
            crcs = [zlib.crc32(stored[a:b]) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
            base = offset + _HEADER.size
            nothing = np.zeros_like(starts)
            return _places(
                False, starts + base, ends + base, nothing, ends - starts, np.array(crcs, np.int64)
            )
        case Compressor.GZIP:
            try:
                body = gunzip(stored, CHUNK_BYTES)
            except ValueError as error:
                raise _Damaged(f"its gzip chunk cannot be unpacked ({error})") from error
            starts, ends = _spans(body, count)
            return _Plain(body, starts.data, ends.data)
        case Compressor.SNAPPY:
            frames = _frames_in(stored)
            starts, ends = _spans(_unsnap(stored), count)
            return _snappy_places(frames, len(stored), offset + _HEADER.size, starts, ends)


def _unsnap(framed: bytes) -> bytes:
    try:
        return bytes(cramjam.snappy.decompress(framed))
    except cramjam.DecompressionError as error:
        raise _Damaged(f"its snappy frames cannot be unpacked ({error})") from error


def _frames_in(stored: bytes) -> list[tuple[int, int]]:
    """Where each frame with data begins, and what it unpacks to: known before anything is unpacked."""
    found: list[tuple[int, int]] = []
    at = total = 0
    while at < len(stored):
        kind, length = stored[at], int.from_bytes(stored[at + 1 : at + 4], "little")
        if at + 4 + length > len(stored):
            raise _Damaged("its snappy frames cannot be unpacked (the last one is cut off)")
        if kind in (_FRAME_COMPRESSED, _FRAME_PLAIN):
            unpacked = length - 4 if kind == _FRAME_PLAIN else _claimed(stored, at + 8)
            if not 0 <= unpacked <= _FRAME_BYTES:
                raise _Damaged(f"a snappy frame claims {unpacked} bytes, at most {_FRAME_BYTES} are allowed")
            if unpacked:
                found.append((at, unpacked))
                total += unpacked
        at += 4 + length
    if total > CHUNK_BYTES:
        raise _Damaged(f"its chunk unpacks to {total} bytes, at most {CHUNK_BYTES} are unpacked")
    return found


def _unframe(frames: bytes) -> bytes:
    """What a few frames hold. Setting up the library's reader of streams costs more than a small record."""
    parts = []
    at = 0
    while at < len(frames):
        end = at + 4 + int.from_bytes(frames[at + 1 : at + 4], "little")
        if frames[at] in (_FRAME_COMPRESSED, _FRAME_PLAIN):
            part = frames[at + 8 : end]
            if frames[at] == _FRAME_COMPRESSED:
                if _claimed(frames, at + 8) > _FRAME_BYTES:
                    raise _Damaged(f"a snappy frame claims more than {_FRAME_BYTES} bytes")
                try:
                    part = bytes(cramjam.snappy.decompress_raw(part))
                except cramjam.DecompressionError as error:
                    raise _Damaged(f"its snappy frames cannot be unpacked ({error})") from error
            if masked_crc(part) != int.from_bytes(frames[at + 4 : at + 8], "little"):
                raise _Damaged("the checksum of its snappy frame does not match")
            parts.append(part)
        at = end
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _spans(body: bytes, count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """First and last byte of each record in an unpacked body."""
    if count * _LENGTH.size > len(body):
        raise _Damaged(f"its chunk promises {count} records, which do not fit into its {len(body)} bytes")
    spans = np.empty((2, count), np.int64)
    at = 0
    for number in range(count):
        if at + _LENGTH.size > len(body):
            raise _Damaged(f"its chunk promises {count} records and holds {number}")
        start = at + _LENGTH.size
        at = start + _LENGTH.unpack_from(body, at)[0]
        spans[0, number], spans[1, number] = start, at
    if at != len(body):
        raise _Damaged(f"its chunk's {count} records end at byte {at} of {len(body)}")
    return spans[0], spans[1]


def _snappy_places(
    frames_in: list[tuple[int, int]],
    size: int,
    base: int,
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
) -> _Places:
    """Which frames hold each record, and how far into what they unpack to it begins."""
    frame_at = [at for at, _ in frames_in] + [size]
    data_at = np.cumsum([0, *(unpacked for _, unpacked in frames_in)])
    frames, data = np.array(frame_at, np.int64), data_at.astype(np.int64)
    first = np.searchsorted(data, starts, side="right") - 1
    last = np.searchsorted(data, ends, side="left")
    return _places(
        True,
        frames[first] + base,
        frames[last] + base,
        starts - data[first],
        ends - starts,
        np.zeros_like(starts),
    )


def _places(snappy: bool, *arrays: npt.NDArray[np.int64]) -> _Places:
    return _Places(snappy, *(np.ascontiguousarray(array, np.int64).data for array in arrays))


def _claimed(data: bytes, at: int) -> int:
    """What a compressed frame says that it unpacks to: a number of at most five bytes."""
    value = 0
    for number, byte in enumerate(data[at : at + 5]):
        value |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            return value
    raise _Damaged("a snappy frame does not say how large it is")


def build_index(path: DataPath) -> FileIndex:
    """One row per chunk, from the headers alone."""
    rows: list[tuple[int, int, int, int, int]] = []
    records = 0
    with opened(path) as fd:
        size = size_of(fd)
        at = 0
        while at < size:
            header = pread(fd, _HEADER.size, at)
            if len(header) < _HEADER.size:
                return _torn(rows, at, size, records, 1, "the file ends inside the header of a chunk")
            magic, crc, compressor, length, count = _HEADER.unpack(header)
            if magic != MAGIC:
                return _torn(
                    rows, at, size, records, 1, f"a chunk should begin here, but its mark is {magic:#010x}"
                )
            if compressor not in Compressor.__members__.values():
                if not rows and length in _OLD_LAYOUT_COMPRESSORS:
                    raise DataError(
                        f"{path}: has the layout of the older pure-Python pyrecordio (number of records "
                        "before the checksum), which is not read; write the data again with elasticdl data "
                        "make or with pyrecordio 0.0.6 or newer"
                    )
                return _torn(rows, at, size, records, 1, f"a chunk names the unknown compressor {compressor}")
            end = at + _HEADER.size + length
            if end > size:
                reason = f"the file ends {end - size} bytes before the end of a chunk of {count} records"
                believed = count if count * _LENGTH.size <= min(length, size) and count <= _MOST_TORN else 1
                return _torn(rows, at, size, records, believed, reason)
            if count * _LENGTH.size > length and not _has(fd, at, crc, compressor, length, count):
                compressor, count = _IMPOSSIBLE, 1
            rows.append((at, crc, compressor, length, count))
            records += count
            at = end
    return FileIndex(_table(rows))


def _has(fd: Handle, *row: int) -> bool:
    """Whether a chunk has as many records as its header says, although so many hardly fit into it."""
    if row[_COMPRESSOR] == Compressor.NONE:
        return False
    try:
        _load_chunk(fd, list(row))
    except _Damaged:
        return False
    return True


def _fits(index: FileIndex, size: int) -> bool:
    """Whether this can be the index of a file of this size: one chunk after the other."""
    table, tear = index.table, index.tear
    if table.ndim != 2 or table.shape[1] != 5:
        return False
    at = records = 0
    for number, (offset, crc, compressor, length, count) in enumerate(table.tolist()):
        torn = compressor == _TORN
        known = torn or compressor == _IMPOSSIBLE or compressor in Compressor.__members__.values()
        if offset != at or not known or not 0 <= crc < 1 << 32 or not 0 <= length <= size:
            return False
        if torn:
            last = (
                number == len(table) - 1 and length == 0 and 0 < count <= max(1, min(_MOST_TORN, size // 4))
            )
            return last and tear is not None and (tear.offset, tear.whole_records) == (offset, records)
        if not 0 <= count <= max(length // _LENGTH.size, compressor == _IMPOSSIBLE):
            return False  # more would have to be counted again
        at += _HEADER.size + length
        records += count
    return at == size and tear is None


def _torn(
    rows: list[tuple[int, int, int, int, int]], at: int, size: int, whole: int, lost: int, reason: str
) -> FileIndex:
    """What is lost counts as records, whose reading fails: so it is seen and counted."""
    counted = max(lost, 1)
    tear = Tear(at, whole, reason, lost_bytes=size - at, counted=counted)
    return FileIndex(_table([*rows, (at, 0, _TORN, 0, counted)]), tear)


def _table(rows: list[tuple[int, int, int, int, int]]) -> npt.NDArray[np.int64]:
    return np.array(rows, np.int64).reshape(-1, 5)


class RecordIOWriter:
    """Writes a RecordIO file that appears under its name only when the ``with`` block ends well.

    Chunks are small (ElasticDL's were 32 MiB), so that few bytes are unpacked for the first record of
    one; each record gets snappy frames of its own, so that later it unpacks alone. Other readers do not
    notice.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        compressor: Compressor = Compressor.SNAPPY,
        max_chunk_bytes: int = 1 << 20,
    ) -> None:
        self._file = AtomicFile(path)
        self._compressor = compressor
        self._max = max_chunk_bytes
        self._records: list[bytes] = []
        self._bytes = 0

    def write(self, record: bytes) -> None:
        if self._records and self._bytes + len(record) > self._max:
            self._flush()
        self._records.append(record)
        self._bytes += len(record)

    def close(self) -> None:
        self._flush()
        self._file.commit()

    def _flush(self) -> None:
        if not self._records:
            return
        parts = [_LENGTH.pack(len(record)) + record for record in self._records]
        # Only a single record is larger than a chunk; readers do not unpack so much at once.
        compressor = self._compressor if self._bytes < CHUNK_BYTES - _FRAME_BYTES else Compressor.NONE
        match compressor:
            case Compressor.NONE:
                stored = b"".join(parts)
            case Compressor.GZIP:
                stored = bytes(cramjam.gzip.compress(b"".join(parts)))
            case Compressor.SNAPPY:
                stored = _STREAM_ID + b"".join(map(_frames, parts))
        header = _HEADER.pack(MAGIC, zlib.crc32(stored), compressor, len(stored), len(self._records))
        self._file.stream.write(header + stored)
        self._records, self._bytes = [], 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._file.abandon()


def _frames(data: bytes) -> bytes:
    """Snappy frames of one record, without the stream's identifier."""
    return bytes(cramjam.snappy.compress(data)).removeprefix(_STREAM_ID)
