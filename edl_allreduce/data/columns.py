"""Choosing columns by name, for all sources that have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from edl_allreduce.errors import DataError

T = TypeVar("T")


def select(columns: Mapping[str, T], names: Sequence[str], *, where: str) -> dict[str, T]:
    """The named columns in the order asked for; all of them when none is named."""
    if not names:
        return dict(columns)
    missing = [name for name in names if name not in columns]
    if missing:
        raise DataError(
            f"{where}: has no column {missing[0]!r}; its columns are {', '.join(columns)}. Correct "
            "columns=... in --data_reader_params"
        )
    return {name: columns[name] for name in names}
