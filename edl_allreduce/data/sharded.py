"""The part that all sources of byte records in files share: which file, which record in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import groupby
from typing import ClassVar

import numpy as np

from edl_allreduce.data.files import DataFile, FilePool, for_each
from edl_allreduce.data.index import Tear
from edl_allreduce.data.source import Indices, Metadata, as_indices, fingerprint_of
from edl_allreduce.errors import BadRecord


class ShardedBytes(ABC):
    """Byte records of several files, numbered through in the order of the files."""

    kind: ClassVar[str]

    def __init__(
        self, files: Sequence[DataFile], counts: Sequence[int], tears: Sequence[Tear | None] = ()
    ) -> None:
        self._files = tuple(files)
        self._tears = tuple(tears) or (None,) * len(self._files)
        self._first = np.concatenate(([0], np.cumsum(counts, dtype=np.int64))).astype(np.int64)
        self._pool = FilePool()
        self._remote = any(file.is_remote for file in self._files)
        self._fingerprint = fingerprint_of(self.kind, len(self), ((f.name, f.size) for f in self._files))

    def __len__(self) -> int:
        return int(self._first[-1])

    @property
    def files(self) -> tuple[DataFile, ...]:
        return self._files

    @property
    def damage(self) -> tuple[str, ...]:
        """Parts of files that cannot be read, in words."""
        found = zip(self._files, self._tears, strict=True)
        return tuple(f"{file.path}: at offset {tear.offset}: {tear}" for file, tear in found if tear)

    @property
    def lost_records(self) -> int:
        """How many records are in those parts besides the ones that are counted as bad: an estimate."""
        return sum(tear.lost_records for tear in self._tears if tear is not None)

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def metadata(self) -> Metadata:
        return Metadata(self.kind)

    def read(self, indices: Indices) -> list[bytes]:
        wanted = as_indices(indices, len(self))
        order = np.argsort(wanted, kind="stable")
        ascending = wanted[order]
        shards = np.searchsorted(self._first, ascending, side="right") - 1
        local = (ascending - self._first[shards]).tolist()
        parts: list[tuple[int, list[int]]] = []
        start = 0
        for shard, group in groupby(shards.tolist()):
            stop = start + sum(1 for _ in group)
            parts.append((shard, local[start:stop]))
            start = stop
        read = for_each(parts, lambda part: self._read_shard(*part), remote=self._remote)
        records = [record for part in read for record in part]
        restored: list[bytes] = [b""] * len(records)
        for place, record in zip(order.tolist(), records, strict=True):
            restored[place] = record
        return restored

    def describe(self, index: int) -> str:
        shard, local = self._locate(index)
        offset = self._offset(shard, local)
        where = f", offset {offset}" if offset is not None else ""
        return f"file {self._files[shard].name}, record {local}{where}"

    def close(self) -> None:
        self._pool.close()

    @abstractmethod
    def _read_shard(self, shard: int, local: list[int]) -> list[bytes]:
        """Records of one file; ``local`` ascends and may repeat."""

    @abstractmethod
    def _offset(self, shard: int, local: int) -> int | None:
        """Byte offset of a record, where the format has one."""

    def _locate(self, index: int) -> tuple[int, int]:
        (checked,) = as_indices([index], len(self)).tolist()
        shard = int(np.searchsorted(self._first, checked, side="right")) - 1
        return shard, checked - int(self._first[shard])

    def _bad(
        self,
        shard: int,
        local: int,
        what: str,
        offset: int | None = None,
        lost_with_it: int = 0,
        same: range = range(0),
    ) -> BadRecord:
        index = int(self._first[shard]) + local
        file = self._files[shard]
        place = offset if offset is not None else self._offset(shard, local)
        where = f" at offset {place}" if place is not None else ""
        return BadRecord(
            f"{file.path}: record {local}{where} (index {index}) is bad: {what}",
            index=index,
            path=str(file.path),
            offset=place,
            lost_with_it=lost_with_it,
            same=same,
        )

    def _torn(self, shard: int, local: int, tear: Tear) -> BadRecord:
        """One of the records that stand for the broken end of a file."""
        first = local == tear.whole_records
        begin = int(self._first[shard]) + tear.whole_records
        return self._bad(
            shard,
            local,
            str(tear),
            lost_with_it=tear.lost_records if first else 0,
            same=range(begin, begin + tear.counted),
        )
