"""Writing data sets: shards of records, atomically, in each format that `elasticdl data` can make."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edl_allreduce import files
from edl_allreduce.data.example import Value, encode_example
from edl_allreduce.data.recordio import RecordIOWriter
from edl_allreduce.data.source import Columns
from edl_allreduce.data.tfrecord import TFRecordWriter
from edl_allreduce.errors import DataError
from edl_allreduce.files import AtomicFile

Advance = Callable[[int], None]
"""Called with the number of records written since the last call."""


MARK = ".made.json"


class Format(StrEnum):
    """What `elasticdl data make --format` takes."""

    RECORDIO = "recordio"
    TFRECORD = "tfrecord"
    NPY = "npy"
    CSV = "csv"


@contextmanager
def new_directory(target: Path, *, overwrite: bool) -> Iterator[Path]:
    """A directory to fill that appears as ``target`` only when the block ends well."""
    if target.exists() and not overwrite:
        raise DataError(f"{target}: exists already; remove it, choose another place, or say --overwrite")
    files.clear_drafts(target)
    with files.new_directory(target) as fresh:
        yield fresh


def leave_mark(directory: Path, asked: Mapping[str, object]) -> None:
    """Write down how this data set was made, and what is in it; hidden, so that nobody takes it for data."""
    mark = {"asked": asked, "files": _listing(directory)}
    (directory / MARK).write_text(json.dumps(mark, indent=1))


def made_before(directory: Path) -> dict[str, object] | None:
    """How the data set there was made; None when nobody can tell, or when it was changed since."""
    try:
        mark = json.loads((directory / MARK).read_text())
        asked: dict[str, object] = dict(mark["asked"])
        return asked if mark["files"] == _listing(directory) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _listing(directory: Path) -> dict[str, int]:
    """Data files and their sizes; indexes come later."""
    found = (p for p in directory.rglob("*") if p.is_file() and not p.name.startswith("."))
    return {str(path.relative_to(directory)): path.stat().st_size for path in sorted(found)}


def write_columns(
    directory: Path, columns: Columns, form: Format, *, records_per_shard: int, advance: Advance
) -> int:
    """Write one part of a data set; returns the number of files."""
    directory.mkdir(parents=True, exist_ok=True)
    match form:
        case Format.RECORDIO | Format.TFRECORD:
            return write_shards(directory, examples(columns), form, records_per_shard, advance)
        case Format.NPY:
            return _write_arrays(directory, columns, advance)
        case Format.CSV:
            return _write_csv(directory, columns, records_per_shard, advance)


def write_shards(
    directory: Path, records: Iterable[bytes], form: Format, records_per_shard: int, advance: Advance
) -> int:
    """Byte records into data-00000, data-00001, ...; returns the number of files."""
    opened = RecordIOWriter if form is Format.RECORDIO else TFRecordWriter
    shards = 0
    for shard in _batches(records, records_per_shard):
        with opened(directory / f"data-{shards:05d}") as writer:
            for record in shard:
                writer.write(record)
                advance(1)
        shards += 1
    return shards


def _batches(records: Iterable[bytes], size: int) -> Iterator[Iterator[bytes]]:
    """Runs of at most ``size`` records, without holding a run in memory. Each must be used up in turn."""
    iterator = iter(records)
    for first in iterator:
        yield _run(first, iterator, size)


def _run(first: bytes, rest: Iterator[bytes], size: int) -> Iterator[bytes]:
    yield first
    for _ in range(size - 1):
        try:
            yield next(rest)
        except StopIteration:
            return


def examples(columns: Columns) -> Iterator[bytes]:
    """Each row as a serialised tf.train.Example. Pixels (uint8) become floats, as ElasticDL wrote them."""
    names = list(columns)
    arrays = [_for_example(array) for array in columns.values()]
    for row in range(len(arrays[0])):
        yield encode_example({name: _value(array[row]) for name, array in zip(names, arrays, strict=True)})


def _for_example(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return array.astype(np.float32) if array.dtype == np.uint8 else array


def _value(item: Any) -> Value:
    if isinstance(item, bytes):
        return item
    return item.encode() if isinstance(item, str) else np.asarray(item)


def _write_arrays(directory: Path, columns: Columns, advance: Advance) -> int:
    for name, array in columns.items():
        # Words become fixed-width: arrays of Python objects would need pickle.
        plain = array.astype(str) if array.dtype == object else array
        with AtomicFile(directory / f"{name}.npy") as file:
            np.save(file.stream, plain, allow_pickle=False)
    advance(len(next(iter(columns.values()))))
    return len(columns)


def _write_csv(directory: Path, columns: Columns, records_per_shard: int, advance: Advance) -> int:
    deep = [name for name, array in columns.items() if array.ndim > 1]
    if deep:
        raise DataError(f"column {deep[0]} has several values per record, which CSV has no place for")
    count = len(next(iter(columns.values())))
    starts = range(0, count, records_per_shard)
    for shard, start in enumerate(starts):
        stop = min(start + records_per_shard, count)
        # str of a float32 is its shortest exact form; tolist() would show it as a longer float64.
        rows = zip(*(map(str, array[start:stop]) for array in columns.values()), strict=True)
        path = directory / f"data-{shard:05d}.csv"
        with AtomicFile(path) as file:
            file.stream.write(_csv_line(columns))
            for row in rows:
                file.stream.write(_csv_line(row))
        advance(stop - start)
    return len(starts)


class _Line:
    """Takes what csv.writer writes."""

    text = ""

    def write(self, text: str) -> None:
        self.text = text


def _csv_line(fields: Iterable[str]) -> bytes:
    line = _Line()
    csv.writer(line, lineterminator="\n").writerow(fields)
    return line.text.encode()
