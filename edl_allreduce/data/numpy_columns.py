"""NumPy arrays as columns: .npy files of one or more directories, or .npz files with equal names inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from edl_allreduce.data.columns import select
from edl_allreduce.data.files import DataFile, head_of
from edl_allreduce.data.locate import Kind
from edl_allreduce.data.numpy_files import load_archive, map_array
from edl_allreduce.data.source import Columns, Indices, Metadata, as_indices, fingerprint_of
from edl_allreduce.errors import DataError

_ARCHIVE = b"PK\x03\x04"


class NumpySource:
    """Columns by name. ``.npy`` files are memory-mapped, one column each; ``.npz`` files are loaded."""

    def __init__(self, files: Sequence[DataFile], *, columns: Sequence[str] = ()) -> None:
        archives = [file for file in files if _is_archive(file)]
        if archives and len(archives) != len(files):
            raise DataError(
                f"{archives[0].path.parent}: holds .npz and .npy files; give a glob that matches one kind, "
                "such as '*.npz'"
            )
        if archives:
            self._shards = [[file] for file in files]
            parts = [_load_archive(file, columns) for file in files]
        else:  # arrays of the same name in several directories follow one another
            self._shards = [list(group) for _, group in groupby(files, key=lambda file: file.path.parent)]
            parts = [_map_arrays(shard, columns) for shard in self._shards]
        self._columns, self._first = _joined(parts)
        self.files = tuple(files)
        dtypes = {name: array.dtype.name for name, array in self._columns.items()}
        self.metadata = Metadata(Kind.NUMPY, tuple(dtypes), MappingProxyType(dtypes))
        self.fingerprint = fingerprint_of(Kind.NUMPY, len(self), ((f.name, f.size) for f in files))

    def __len__(self) -> int:
        return self._first[-1]

    def read(self, indices: Indices) -> Columns:
        wanted = as_indices(indices, len(self))
        return {name: array[wanted] for name, array in self._columns.items()}

    def describe(self, index: int) -> str:
        (checked,) = as_indices([index], len(self)).tolist()
        shard = int(np.searchsorted(self._first, checked, side="right")) - 1
        names, row = [file.name for file in self._shards[shard]], checked - self._first[shard]
        return f"file {names[0]}, record {row}" if len(names) == 1 else f"row {row} of {', '.join(names)}"

    def close(self) -> None:
        self._columns = {}


def _is_archive(file: DataFile) -> bool:
    return head_of(file.path, len(_ARCHIVE)) == _ARCHIVE


def _map_arrays(files: Sequence[DataFile], names: Sequence[str]) -> tuple[str, Columns]:
    """The arrays of one directory."""
    columns = {file.path.stem: map_array(file.on_this_machine()) for file in files}
    where = str(files[0].path.parent)
    return where, select(columns, names, where=where)


def _load_archive(file: DataFile, names: Sequence[str]) -> tuple[str, Columns]:
    return str(file.path), load_archive(file.on_this_machine(), names)


def _joined(parts: Sequence[tuple[str, Columns]]) -> tuple[Columns, list[int]]:
    """One after the other, and at which row each begins."""
    (origin, head), first = parts[0], [0]
    for where, part in parts:
        if _shape_of(part) != _shape_of(head):
            raise DataError(
                f"{where}: its arrays {_shape_of(part)} differ from those of {origin} {_shape_of(head)}; "
                "all parts of a data set need the same names, types and shapes"
            )
        first.append(first[-1] + _common_length(part, where))
    if len(parts) == 1:
        return head, first
    return {name: np.concatenate([part[name] for _, part in parts]) for name in head}, first


def _shape_of(columns: Mapping[str, npt.NDArray[Any]]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (array.dtype.name, array.shape[1:]) for name, array in columns.items()}


def _common_length(columns: Mapping[str, npt.NDArray[Any]], where: str) -> int:
    lengths = {name: len(array) if array.ndim else -1 for name, array in columns.items()}
    if len(set(lengths.values())) != 1 or -1 in lengths.values():
        listed = ", ".join(f"{name} has {n if n >= 0 else 'no'} rows" for name, n in lengths.items())
        raise DataError(
            f"{where}: all arrays need the same number of rows, got: {listed or 'no arrays'}; choose "
            'the columns that belong together with --data_reader_params="columns=x,y"'
        )
    return next(iter(lengths.values()))
