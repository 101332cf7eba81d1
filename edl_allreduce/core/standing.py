"""From whose state a ring goes on: the furthest that somebody has, or that can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Standing(NamedTuple):
    """How far one rank is; ranks that stand alike have the same state."""

    is_agreed: int
    step: int
    position: int
    evaluated: int
    journal_bytes: int
    run: int


class Origin(NamedTuple):
    """Whose state all take."""

    root: int
    alike: tuple[int, ...]
    """Those who hold the state of the job, and the same as `root`: what they hold can be compared."""
    gives_way: int | None = None
    """Who alone is one step or one evaluation further, and goes back: nobody could say whether what it holds
    is right. It makes the same again with the others, and then it can."""


def origin(table: Sequence[Standing], *, comparable: bool) -> Origin:
    """`comparable`: ranks that stand alike hold the same bits, and a step made again gives the same."""
    owners = [rank for rank, standing in enumerate(table) if standing.is_agreed]
    root = max(owners or range(len(table)), key=lambda rank: (table[rank].step, table[rank].evaluated, -rank))
    alike = _alike(table, owners, root)
    if not comparable or len(alike) != 1:
        return Origin(root, alike)
    others = [rank for rank in owners if rank != root and _shortly_before(table[rank], table[root])]
    if not others:
        return Origin(root, alike)
    follows = max(others, key=lambda rank: (table[rank].step, len(_alike(table, owners, rank)) > 1, -rank))
    return Origin(follows, _alike(table, owners, follows), gives_way=root)


def _alike(table: Sequence[Standing], owners: Sequence[int], root: int) -> tuple[int, ...]:
    return tuple(rank for rank in owners if table[rank] == table[root])


def _shortly_before(one: Standing, furthest: Standing) -> bool:
    """Members of one ring are at most so far apart when it breaks. Who is further behind was cut off for a
    while, and the steps since then are not given up for it."""
    return one.run == furthest.run and furthest.step - one.step <= 1
