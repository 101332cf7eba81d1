"""Splitting a data set for the static mode: each trainer finds its own part under its number."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from edl_allreduce.data.csv_lines import CsvSource
from edl_allreduce.data.images import ImageFolderSource
from edl_allreduce.data.locate import Kind
from edl_allreduce.data.source import RecordSource
from edl_allreduce.data.writing import Advance, Format, new_directory, write_columns, write_shards
from edl_allreduce.errors import DataError
from edl_allreduce.files import AtomicFile

_READ_RECORDS = 512
_RECORDS_PER_SHARD = 16 * 1024


def part_ranges(count: int, parts: int) -> list[range]:
    """Contiguous ranges that differ by at most one record."""
    small, extra = divmod(count, parts)
    starts = [number * small + min(number, extra) for number in range(parts + 1)]
    return [range(first, after) for first, after in pairwise(starts)]


def split(source: RecordSource, parts: int, out: Path, *, overwrite: bool, advance: Advance) -> list[Path]:
    """Write ``out/N/data`` for N from 0 to parts - 1, and an empty ``out/output`` for results."""
    if not 1 <= parts <= len(source):
        raise DataError(
            f"{len(source)} records cannot be split into {parts} parts; choose a number from 1 to "
            f"{len(source)}"
        )
    directories = []
    for number, rows in enumerate(part_ranges(len(source), parts)):
        directory = out / str(number) / "data"
        with new_directory(directory, overwrite=overwrite) as fresh:
            _write_part(source, rows, fresh, advance)
        directories.append(directory)
    (out / "output").mkdir(exist_ok=True)
    return directories


def _write_part(source: RecordSource, rows: range, directory: Path, advance: Advance) -> None:
    match source.metadata.kind:
        case Kind.IMAGES:
            assert isinstance(source, ImageFolderSource)
            for row in rows:
                file = source.files[row]
                target = directory / file.name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file.on_this_machine(), target)
                advance(1)
        case Kind.CSV:
            assert isinstance(source, CsvSource)
            with AtomicFile(directory / f"data-00000{source.suffix}") as lines:
                if source.header is not None:
                    lines.stream.write(source.header + b"\n")
                for record in _records(source, rows):
                    lines.stream.write(record + b"\n")
                    advance(1)
        case Kind.TFRECORD | Kind.ARRAYRECORD:
            write_shards(directory, _records(source, rows), Format.TFRECORD, _RECORDS_PER_SHARD, advance)
        case Kind.RECORDIO:
            write_shards(directory, _records(source, rows), Format.RECORDIO, _RECORDS_PER_SHARD, advance)
        case _:
            columns = source.read(rows)
            assert isinstance(columns, dict)
            write_columns(
                directory, columns, Format.NPY, records_per_shard=_RECORDS_PER_SHARD, advance=advance
            )


def _records(source: RecordSource, rows: range) -> Iterator[bytes]:
    for start in range(rows.start, rows.stop, _READ_RECORDS):
        records = source.read(range(start, min(start + _READ_RECORDS, rows.stop)))
        assert isinstance(records, list)
        yield from records
