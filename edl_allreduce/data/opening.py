"""One door to all formats."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edl_allreduce.data.locate import Kind, Located, locate, parse_kind
from edl_allreduce.data.source import Indices, Records, RecordSource
from edl_allreduce.errors import BadRecord, DataError, UsageError
from edl_allreduce.spec.words import nearest

PARAMS = ("reader_type", "columns", "header", "sep", "quoting")
"""Of --data_reader_params, for all formats that this package reads itself."""
ALIASES = {"separator": "sep", "delimiter": "sep", "format": "reader_type", "type": "reader_type"}
"""What people write instead."""


def open_source(
    path: str, *, params: Mapping[str, str] | None = None, allow_truncated: bool = False
) -> RecordSource:
    """Open a directory, a glob, a file or a comma-separated list of them.

    ``params`` are those of --data_reader_params; ``reader_type`` forces a format, ``columns`` chooses
    columns, the others tell how CSV is written. Unknown ones are refused.

    A file whose end is broken is an error, unless ``allow_truncated``: then what is broken counts as
    records whose reading raises BadRecord, so that every worker sees and counts the same ones.
    """
    params = params or {}
    check_params(params)
    located = find(path, params)
    source = _open(located, params, allow_truncated)
    if len(source) == 0:
        source.close()
        raise DataError(
            f"{path}: {len(located.files)} {located.kind} files, but no record; write the data again"
        )
    return source


def find(path: str, params: Mapping[str, str]) -> Located:
    """The files that would be opened, and their format; nothing in them is read but their first bytes."""
    forced = parse_kind(params["reader_type"]) if params.get("reader_type") else None
    return locate(path, forced)


def check_params(params: Mapping[str, str]) -> None:
    """A misspelt parameter would change what is read, or nothing, in silence."""
    for name in params:
        if name not in PARAMS:
            meant = nearest(name, [*PARAMS, *ALIASES])
            guess = f" Did you mean {ALIASES.get(meant, meant)}?" if meant else ""
            raise UsageError(
                f"--data_reader_params: {name} is not known.{guess} Known: "
                f"{', '.join(PARAMS)}; others are for a custom_data_reader of the model file."
            )
    if params.get("reader_type"):
        parse_kind(params["reader_type"])


def read_good(source: RecordSource, indices: Indices) -> tuple[Records, tuple[BadRecord, ...]]:
    """Read what can be read, in the order given, and tell what could not: one error per bad record."""
    wanted = np.asarray(indices, dtype=np.int64).reshape(-1)
    bad: list[BadRecord] = []
    while True:
        try:
            return source.read(wanted), tuple(bad)
        except BadRecord as error:
            also = np.unique(wanted[(wanted >= error.same.start) & (wanted < error.same.stop)]).tolist()
            bad += [error, *(_like(error, index) for index in also if index != error.index)]
            wanted = wanted[~np.isin(wanted, [error.index, *also])]


def _like(error: BadRecord, index: int) -> BadRecord:
    message = f"{error.path}: the record with index {index} is bad for the same reason as index {error.index}"
    return BadRecord(message, index=index, path=error.path, offset=error.offset)


def _open(located: Located, params: Mapping[str, str], allow_truncated: bool) -> RecordSource:
    """Formats are imported when used: some need an extra package."""
    columns = tuple(name.strip() for name in params.get("columns", "").split(",") if name.strip())
    match located.kind:
        case Kind.TFRECORD:
            from edl_allreduce.data.tfrecord import TFRecordSource

            return TFRecordSource(located.files, allow_truncated=allow_truncated)
        case Kind.RECORDIO:
            from edl_allreduce.data.recordio import RecordIOSource

            return RecordIOSource(located.files, allow_truncated=allow_truncated)
        case Kind.NUMPY:
            from edl_allreduce.data.numpy_columns import NumpySource

            return NumpySource(located.files, columns=columns)
        case Kind.CSV:
            from edl_allreduce.data.csv_lines import CsvSource

            return CsvSource(located.files, params=params, columns=columns, allow_truncated=allow_truncated)
        case Kind.IMAGES:
            from edl_allreduce.data.images import ImageFolderSource

            return ImageFolderSource(located.files)
        case Kind.PARQUET:
            from edl_allreduce.data.parquet import ParquetSource

            return ParquetSource(located.files, columns=columns)
        case Kind.ARRAYRECORD:
            from edl_allreduce.data.array_record import ArrayRecordSource

            return ArrayRecordSource(located.files)
