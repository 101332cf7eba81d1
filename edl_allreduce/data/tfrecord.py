"""TFRecord files: (length, masked CRC of length, data, masked CRC of data) one after the other."""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import google_crc32c
import numpy as np

from edl_allreduce.data.files import DataFile, DataPath, opened, pread, read_spans, size_of
from edl_allreduce.data.index import FileIndex, Tear, load_all, refuse_tear
from edl_allreduce.data.sharded import ShardedBytes
from edl_allreduce.files import AtomicFile

_HEADER = struct.Struct("<QI")
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_FRAME_BYTES = _HEADER.size + _CRC.size
_SCAN_BYTES = 1 << 20


def masked_crc(data: bytes) -> int:
    """CRC32C, rotated and shifted as TFRecord wants it."""
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def looks_like_tfrecord(head: bytes) -> bool:
    """The checksum of the first length is 32 bits that hardly any other format gets right."""
    return len(head) >= _HEADER.size and _HEADER.unpack_from(head)[1] == masked_crc(head[: _LENGTH.size])


class TFRecordSource(ShardedBytes):
    """Whole records (serialised tf.train.Example, mostly); every checksum is verified when read."""

    kind = "tfrecord"

    def __init__(self, files: Sequence[DataFile], *, allow_truncated: bool = False) -> None:
        indexes = load_all(files, self.kind, build_index, _fits)
        for file, index in zip(files, indexes, strict=True):
            if index.tear is not None and not allow_truncated:
                raise refuse_tear(file.path, index.tear)
        # Views, because taking single numbers out of them is several times faster than out of arrays.
        self._offsets = [
            (np.append(index.table, file.size) if index.tear is not None else index.table).data
            for file, index in zip(files, indexes, strict=True)
        ]
        # A tear counts as one more record of its file, whose reading fails: so it is seen and counted.
        counts = [len(offsets) - 1 for offsets in self._offsets]
        super().__init__(files, counts, [index.tear for index in indexes])

    def _offset(self, shard: int, local: int) -> int:
        return self._offsets[shard][local]

    def _read_shard(self, shard: int, local: list[int]) -> list[bytes]:
        tear = self._tears[shard]
        if tear is not None and local[-1] == tear.whole_records:
            raise self._torn(shard, tear.whole_records, tear)
        offsets = self._offsets[shard]
        starts, ends = [offsets[at] for at in local], [offsets[at + 1] for at in local]
        with self._pool.open(self._files[shard].path) as fd:
            frames = read_spans(fd, starts, ends)
        records: list[bytes] = []
        for frame in frames:
            body = frame[_HEADER.size : -_CRC.size]
            if frame[-_CRC.size :] != _CRC.pack(masked_crc(body)):
                at = len(records)
                raise self._bad(shard, local[at], _problem(frame, body, ends[at] - starts[at]))
            records.append(body)
        return records


def _problem(frame: bytes, body: bytes, expected: int) -> str:
    if len(frame) < expected:
        return "the file is shorter than when it was opened"
    (length,) = _LENGTH.unpack_from(frame)
    if length != len(body):
        return f"its length field says {length}, the index says {len(body)}"
    (stored,) = _CRC.unpack_from(frame, len(frame) - _CRC.size)
    return f"checksum {stored:08x} is stored, its {len(body)} bytes give {masked_crc(body):08x}"


def build_index(path: DataPath) -> FileIndex:
    """Offsets of all records and the end of the last one, from the length fields alone."""
    offsets = array("q", [0])
    with opened(path) as fd:
        size = size_of(fd)
        position = base = 0
        window = b""
        while position < size:
            at = position - base
            if at + _HEADER.size > len(window):
                base, at = position, 0
                window = pread(fd, _SCAN_BYTES, base)
            if len(window) < at + _HEADER.size:
                return _torn(offsets, size, "the file ends inside the header of a record")
            length, stored = _HEADER.unpack_from(window, at)
            if stored != masked_crc(window[at : at + _LENGTH.size]):
                return _torn(offsets, size, "the length field of a record does not match its checksum")
            position += length + _FRAME_BYTES
            if position > size:
                missing = position - size
                return _torn(offsets, size, f"the file ends {missing} bytes before the end of a record")
            offsets.append(position)
    return FileIndex(np.frombuffer(offsets, dtype=np.int64))


def _fits(index: FileIndex, size: int) -> bool:
    """Whether this can be the index of a file of this size: each record has at least its frame."""
    offsets, tear = index.table, index.tear
    if offsets.ndim != 1 or not len(offsets) or offsets[0] != 0 or (np.diff(offsets) < _FRAME_BYTES).any():
        return False
    if tear is None:
        return int(offsets[-1]) == size
    return (tear.offset, tear.whole_records) == (int(offsets[-1]), len(offsets) - 1) and tear.counted == 1


def _torn(offsets: array[int], size: int, reason: str) -> FileIndex:
    end = offsets[-1]
    tear = Tear(end, len(offsets) - 1, reason, lost_bytes=size - end, counted=1)
    return FileIndex(np.frombuffer(offsets, dtype=np.int64), tear)


class TFRecordWriter:
    """Writes a TFRecord file that appears under its name only when the ``with`` block ends well."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = AtomicFile(path)

    def write(self, record: bytes) -> None:
        length = _LENGTH.pack(len(record))
        self._file.stream.write(
            b"".join((length, _CRC.pack(masked_crc(length)), record, _CRC.pack(masked_crc(record))))
        )

    def close(self) -> None:
        self._file.commit()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.__exit__(kind, error, trace)
