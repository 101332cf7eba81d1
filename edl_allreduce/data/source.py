"""What every record source offers: random access by record index, and words for a human."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

Columns: TypeAlias = dict[str, npt.NDArray[Any]]
"""Named columns; the leading dimension of each is the number of records."""

Records: TypeAlias = list[bytes] | Columns
"""Byte records (a serialised tf.train.Example, a CSV line), or columns."""

Indices: TypeAlias = Sequence[int] | npt.NDArray[np.integer[Any]]

_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Metadata:
    """What is known about the records without reading them; handed to a model's ``feed``.

    ``column_names`` and ``column_dtypes`` carry the names that ElasticDL's metadata had.
    """

    kind: str
    column_names: tuple[str, ...] = ()
    column_dtypes: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    class_names: tuple[str, ...] = ()


@runtime_checkable
class RecordSource(Protocol):
    """Records by index. Every worker that opens the same data sees the same order."""

    def __len__(self) -> int: ...

    def read(self, indices: Indices) -> Records:
        """The records in the order given. May be called from several threads at once.

        Raises BadRecord for a corrupt one and IndexError for an index out of range.
        """
        ...

    @property
    def fingerprint(self) -> str:
        """Equal on every worker that sees the same data; costs no reading of records."""
        ...

    @property
    def metadata(self) -> Metadata: ...

    def describe(self, index: int) -> str:
        """Where a record lies, for messages: ``file data-00003, record 17, offset 12345``."""
        ...

    def close(self) -> None: ...


def as_indices(indices: Indices, length: int) -> npt.NDArray[np.int64]:
    """Indices as int64, each checked against the number of records."""
    array = np.asarray(indices, dtype=np.int64).reshape(-1)
    if array.size:
        low, high = int(array.min()), int(array.max())
        if low < 0 or high >= length:
            wrong = low if low < 0 else high
            raise IndexError(f"record {wrong} was asked for, but the source has records 0 to {length - 1}")
    return array


def fingerprint_of(kind: str, count: int, parts: Iterable[tuple[str, int]]) -> str:
    """A short digest of the format, the number of records and the (name, size) of each file."""
    digest = hashlib.sha256(f"{kind}\0{count}\0".encode())
    for name, size in parts:
        digest.update(f"{name}\0{size}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:16]
