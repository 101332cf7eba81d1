"""Parquet: columns by name, read by row group. Needs pyarrow (the extra ``parquet``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from edl_allreduce.data.cache import CACHE_BYTES, Cache
from edl_allreduce.data.columns import select
from edl_allreduce.data.files import DataFile, DataPath, Stream
from edl_allreduce.data.locate import Kind
from edl_allreduce.data.source import Columns, Indices, Metadata, as_indices, fingerprint_of
from edl_allreduce.errors import BadRecord, DataError, SetupError
from edl_allreduce.storage.url import Object

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as error:
    raise SetupError(
        "reading Parquet needs pyarrow, which is not installed; install it with: pip install "
        "'edl-allreduce[parquet]'"
    ) from error


_LONGEST = 300
"""Characters of what pyarrow says about a file."""


@dataclass(frozen=True)
class _RowGroup:
    """The chosen columns of one row group, or the reason why it cannot be read."""

    columns: Columns
    nulls: dict[str, npt.NDArray[np.bool_]]
    broken: str = ""

    @property
    def weight(self) -> int:
        return 1000 + sum(_nbytes(array) for array in self.columns.values())


class ParquetSource:
    """Columns; an unpacked row group is kept in memory, up to a limit. A null is a bad record."""

    def __init__(self, files: Sequence[DataFile], *, columns: Sequence[str] = ()) -> None:
        self.files = tuple(files)
        schemas, groups = zip(*(_footer(file.path) for file in files), strict=True)
        chosen = select({field.name: field.type for field in schemas[0]}, columns, where=str(files[0].path))
        for file, schema in zip(files, schemas, strict=True):
            there = {field.name: field.type for field in schema}
            if {name: there.get(name) for name in chosen} != chosen:
                raise DataError(
                    f"{file.path}: its columns {_listed(there)} differ from those of {files[0].path} "
                    f"{_listed(chosen)}; all files of a data set need the same names and types"
                )
        self._names = list(chosen)
        # One entry per row group: which file, which group in it.
        self._groups = [(f, g) for f, rows in enumerate(groups) for g in range(len(rows))]
        counts = [count for rows in groups for count in rows]
        self._first = np.concatenate(([0], np.cumsum(counts, dtype=np.int64))).astype(np.int64)
        self._file_first = np.concatenate(([0], np.cumsum([sum(rows) for rows in groups], dtype=np.int64)))
        dtypes = {name: str(kind) for name, kind in chosen.items()}
        self.metadata = Metadata(Kind.PARQUET, tuple(dtypes), MappingProxyType(dtypes))
        self.fingerprint = fingerprint_of(Kind.PARQUET, len(self), ((f.name, f.size) for f in files))
        self._cache: Cache[_RowGroup] = Cache(CACHE_BYTES)

    def __len__(self) -> int:
        return int(self._first[-1])

    def read(self, indices: Indices) -> Columns:
        wanted = as_indices(indices, len(self))
        order = np.argsort(wanted, kind="stable")
        ascending = wanted[order]
        cuts = np.searchsorted(ascending, self._first)
        parts: list[Columns] = []
        for number in np.flatnonzero(np.diff(cuts)).tolist() or [0]:
            rows = ascending[cuts[number] : cuts[number + 1]] - self._first[number]
            group = self._group(number)
            if group.broken and rows.size:
                same = range(int(self._first[number]), int(self._first[number + 1]))
                raise self._bad(int(self._first[number] + rows[0]), group.broken, same)
            for name, null in group.nulls.items():
                if null[rows].any():
                    row = int(rows[np.flatnonzero(null[rows])[0]])
                    raise self._bad(int(self._first[number]) + row, f"column {name} is null")
            parts.append({name: array[rows] for name, array in group.columns.items()})
        back = np.empty_like(order)
        back[order] = np.arange(order.size)
        try:
            return {name: np.concatenate([part[name] for part in parts])[back] for name in self._names}
        except ValueError as error:
            raise _ragged() from error

    def _group(self, number: int) -> _RowGroup:
        known = self._cache.get((0, number))
        if known is not None:
            return known
        file, row_group = self._groups[number]
        rows = int(self._first[number + 1] - self._first[number])
        group = _load(self.files[file].path, row_group, self._names, rows)
        self._cache.put((0, number), group)
        return group

    def describe(self, index: int) -> str:
        (checked,) = as_indices([index], len(self)).tolist()
        file = int(np.searchsorted(self._file_first, checked, side="right")) - 1
        return f"file {self.files[file].name}, record {checked - int(self._file_first[file])}"

    def close(self) -> None:
        self._cache.clear()

    def _bad(self, index: int, what: str, same: range = range(0)) -> BadRecord:
        file = int(np.searchsorted(self._file_first, index, side="right")) - 1
        path = self.files[file].path
        local = index - int(self._file_first[file])
        return BadRecord(
            f"{path}: record {local} (index {index}) is bad: {what}", index=index, path=str(path), same=same
        )


_DAMAGED = (pa.ArrowException, OSError, ValueError, TypeError, KeyError, OverflowError, MemoryError)
"""What pyarrow raises for files that are not sound: mostly its own, also the builtins that those extend."""


def _readable(path: DataPath) -> Any:
    return pa.PythonFile(Stream(path), mode="r") if isinstance(path, Object) else path


def _footer(path: DataPath) -> tuple[Any, list[int]]:
    try:
        with pq.ParquetFile(_readable(path)) as file:
            groups = [_rows(file.metadata, number) for number in range(file.metadata.num_row_groups)]
            if sum(groups) != file.metadata.num_rows:
                raise ValueError(
                    f"{file.metadata.num_rows} rows are announced, its groups have {sum(groups)}"
                )
            return file.schema_arrow, groups
    except _DAMAGED as error:
        raise DataError(f"{path}: is not a whole Parquet file ({_words(error)}); write it again") from error


def _rows(metadata: Any, number: int) -> int:
    """Of a row group. The count is written several times over; a damaged one would be read for ever."""
    group = metadata.row_group(number)
    rows = int(group.num_rows)
    values = [int(group.column(at).num_values) for at in range(group.num_columns)]
    if rows < 0 or any(count < rows for count in values):
        raise ValueError(f"row group {number} announces {rows} rows, its columns have {min(values)}")
    return rows


def _load(path: DataPath, row_group: int, names: Sequence[str], rows: int) -> _RowGroup:
    try:
        # A file object of its own per call: pyarrow's readers must not be shared between threads.
        with pq.ParquetFile(_readable(path)) as file:
            table = file.read_row_group(row_group, columns=list(names))
            table.validate(full=True)  # offsets that point outside would end the process, not the reading
        if table.num_rows != rows:
            raise ValueError(f"{rows} rows are announced, {table.num_rows} are there")
        columns: Columns = {}
        nulls: dict[str, npt.NDArray[np.bool_]] = {}
        for name in names:
            column = table.column(name)
            if column.null_count and not pa.types.is_floating(column.type):
                nulls[name] = column.is_null().to_numpy()
            columns[name] = _to_numpy(column)
    except _DAMAGED as error:
        return _RowGroup(
            {name: np.empty(0) for name in names}, {}, f"its row group cannot be read ({_words(error)})"
        )
    return _RowGroup(columns, nulls)


def _words(error: BaseException) -> str:
    return str(error).strip()[:_LONGEST] or type(error).__name__


def _to_numpy(column: Any) -> npt.NDArray[Any]:
    """A plain array; lists become a further dimension, so they need one length in the whole data set."""
    array: npt.NDArray[Any] = column.to_numpy()
    if array.dtype != object or not len(array) or not isinstance(array[0], np.ndarray):
        return array
    try:
        return np.stack(list(array))
    except ValueError as error:
        raise _ragged() from error


def _ragged() -> DataError:
    return DataError(
        "a column of lists has lists of different lengths, which cannot be stacked to an array; pad them to "
        "one length when the file is written, or leave the column out with columns=... in "
        "--data_reader_params"
    )


def _nbytes(array: npt.NDArray[Any]) -> int:
    if array.dtype != object:
        return int(array.nbytes)
    return sum(50 + (len(item) if isinstance(item, bytes | str) else 0) for item in array)


def _listed(columns: dict[str, Any]) -> str:
    return "(" + ", ".join(f"{name}: {kind}" for name, kind in columns.items()) + ")"
