"""A model file's own reader (`custom_data_reader`) as a record source."""

from __future__ import annotations

import bisect
import hashlib
import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edl_allreduce.core.schedule import BLOCK_RECORDS, WINDOW_BLOCKS
from edl_allreduce.data import RecordSource
from edl_allreduce.data.source import Indices, Records, as_indices
from edl_allreduce.errors import DataError, ModelError

CACHED_BLOCKS = 2 * WINDOW_BLOCKS
"""Shuffled training visits the blocks of one window in any order, then those of the next."""


@dataclass(frozen=True)
class Shard:
    """A run of records that the reader can be asked for, as ElasticDL's readers know it."""

    name: str
    start: int
    end: int
    indices: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class ReaderTask:
    """What `read_records` gets."""

    shard: Shard
    task_id: int = 0
    type: str = "training"


def open_custom(make: Callable[..., Any], data_origin: str, params: Mapping[str, str]) -> RecordSource:
    """Call `custom_data_reader`; it gives a reader of ElasticDL's kind or one of our own record sources."""
    reader = make(data_origin, **params)
    if isinstance(reader, RecordSource):
        return reader
    for name in ("create_shards", "read_records"):
        if not callable(getattr(reader, name, None)):
            raise ModelError(
                f"custom_data_reader gave a {type(reader).__name__} without {name}(); expected an object "
                "with create_shards() and read_records(task), or an edl_allreduce.data.RecordSource"
            )
    return CustomSource(reader, data_origin)


class CustomSource:
    """Random access over a reader that gives runs of records, which are kept for a while."""

    def __init__(self, reader: Any, origin: str) -> None:
        shards = reader.create_shards()
        if isinstance(shards, Mapping):
            shards = [(name, *where) for name, where in shards.items()]
        self._shards = [Shard(str(n), int(start), int(start) + int(count)) for n, start, count in shards]
        self._ends = list(itertools.accumulate(s.end - s.start for s in self._shards))
        if not self._ends or self._ends[-1] == 0:
            raise DataError(f"{origin}: the reader {type(reader).__name__} has no records")
        self._reader = reader
        self._blocks: OrderedDict[tuple[int, int], list[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._ends[-1]

    @property
    def fingerprint(self) -> str:
        text = repr([(s.name, s.start, s.end) for s in self._shards])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def metadata(self) -> Any:
        return getattr(self._reader, "metadata", None)

    def read(self, indices: Indices) -> Records:
        with self._lock:
            records = [self._record(int(i)) for i in as_indices(indices, len(self))]
        if records and isinstance(records[0], Mapping):
            return {name: np.stack([np.asarray(r[name]) for r in records]) for name in records[0]}
        return [r if isinstance(r, bytes) else str(r).encode() for r in records]

    def _locate(self, index: int) -> tuple[int, int]:
        number = bisect.bisect_right(self._ends, index)
        return number, index - (self._ends[number - 1] if number else 0)

    def _record(self, index: int) -> Any:
        number, offset = self._locate(index)
        block, within = divmod(offset, BLOCK_RECORDS)
        key = (number, block)
        if key not in self._blocks:
            shard = self._shards[number]
            start = shard.start + block * BLOCK_RECORDS
            end = min(start + BLOCK_RECORDS, shard.end)
            found = list(
                self._reader.read_records(ReaderTask(Shard(shard.name, start, end, list(range(start, end)))))
            )
            if len(found) != end - start:
                raise DataError(
                    f"the reader gave {len(found)} records of {shard.name} for [{start}, {end}), "
                    f"expected {end - start}"
                )
            self._blocks[key] = found
            if len(self._blocks) > CACHED_BLOCKS:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(key)
        return self._blocks[key][within]

    def describe(self, index: int) -> str:
        number, offset = self._locate(index)
        return f"shard {self._shards[number].name}, record {self._shards[number].start + offset}"

    def close(self) -> None:
        close = getattr(self._reader, "close", None)
        if callable(close):
            close()
