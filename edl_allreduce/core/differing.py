"""Whose weights differ, when workers that must hold the same ones do not, and what becomes of that.

Where more than half hold the same, the others are wrong. Otherwise nobody can tell from the weights, but the
steps can be made again: from the last checkpoint, by other processes. What these come to is right, and says
afterwards who was wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

CURE = "its memory or processor may be faulty, or its software differs"
START_AGAIN = "Nothing was kept of it; start the job again to go on from its last checkpoint"
TO_FIND_IT = "with three workers or more to have the faulty one found"
MOST_ROUNDS = 10
"""So often a job goes back; each time it was further than the last time."""


def odd_ranks(values: Sequence[int]) -> tuple[int, ...]:
    """Those that hold something else than more than half of all; none where no such majority is."""
    common, count = Counter(values).most_common(1)[0]
    if 2 * count <= len(values):
        return ()
    return tuple(rank for rank, value in enumerate(values) if value != common)


def words(step: int) -> str:
    """What is wrong with one of them, after its name."""
    return f"holds other weights than the rest after {step} steps: {CURE}"


def doubtful(step: int) -> str:
    """What is wrong with one of them where there is no majority, after its name."""
    return f"holds weights after {step} steps that others contradict, and nobody can tell which are right"


def nobody_knows(workers: Sequence[int], step: int) -> str:
    """When there is no majority."""
    named = ", ".join(map(str, workers))
    return (
        f"workers {named} hold different weights after {step} steps, and no majority says which are right: "
        "the memory or processor of one may be faulty"
    )


# ------------------------------------------------------------------------------------- without a majority


@dataclass(frozen=True)
class Holder:
    """One of those who held different weights."""

    worker_id: int
    host: str
    fingerprint: str = ""
    """Of its weights, as far as ranks compare it; empty when it was lost before it could tell."""

    def __str__(self) -> str:
        return f"worker {self.worker_id} ({self.host})"


@dataclass(frozen=True)
class Doubt:
    """After `step` steps these held different weights, and no majority said which were right."""

    step: int
    holders: tuple[Holder, ...]
    is_open: bool = True
    """Nobody came to this step again yet."""
    generation: int = 0
    """Of the ring in which it was found; a ring ends with that, so there is one for each."""
    rounds: int = 1
    """How often workers of this job contradicted each other, with this time."""

    def __str__(self) -> str:
        return nobody_knows([holder.worker_id for holder in self.holders], self.step)


@dataclass(frozen=True)
class GoBack:
    """All who are in doubt are replaced; nothing of theirs is kept."""

    reason: str


@dataclass(frozen=True)
class GiveUp:
    """The job fails."""

    reason: str


def decide(doubt: Doubt, earlier: Doubt | None, *, replaces: bool = True) -> GoBack | GiveUp:
    """What becomes of a job whose workers contradict each other. `earlier`: the last time that they did;
    `replaces`: others will be started for them.

    One wrong bit in a memory does not come again when the steps are made again. Where a job does not get past
    the step at which it went back before, something is wrong for good, and going back would never end. Where
    it does, but is never done with it, too.
    """
    if not replaces:
        return GiveUp(
            f"{doubt}. This master starts no workers (--num_workers=0), so nobody would make the steps "
            f"again. {START_AGAIN}, {TO_FIND_IT}"
        )
    machines = ", ".join(sorted({h.host for h in (*(earlier.holders if earlier else ()), *doubt.holders)}))
    if earlier is not None and doubt.step <= earlier.step:
        return GiveUp(
            f"{doubt}. Steps were made again for that before (then after {earlier.step}), so it is no single "
            f"wrong bit: look at the machines ({machines}). {START_AGAIN}, on other machines, or {TO_FIND_IT}"
        )
    if doubt.rounds > MOST_ROUNDS:
        return GiveUp(
            f"{doubt}. Steps were made again {MOST_ROUNDS} times for that, so it is no single wrong bit: "
            f"look at the machines (the last were {machines}). {START_AGAIN}, on other machines, or "
            f"{TO_FIND_IT}"
        )
    return GoBack(
        f"{doubt}. All of them are replaced, and the steps since the last checkpoint (without one: all "
        "steps) are made again, which will show who was wrong"
    )


def verdict(doubt: Doubt, fingerprint: str) -> str:
    """Who was wrong, now that others came to this after as many steps."""
    wrong = [str(h) for h in doubt.holders if h.fingerprint and h.fingerprint != fingerprint]
    unknown = [str(h) for h in doubt.holders if not h.fingerprint]
    made = f"after {doubt.step} steps, made again, the weights have the fingerprint {fingerprint}…"
    if wrong:
        return f"{made}: {', '.join(wrong)} held others, and {CURE}"
    if unknown:
        return f"{made}: {', '.join(unknown)} did not live to tell theirs, and the others held these"
    return f"{made}, which all had who were in doubt: one of them was wrong for a moment only"
