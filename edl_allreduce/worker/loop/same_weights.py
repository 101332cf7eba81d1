"""All ranks of a reproducible job hold the same weights: what happens when one does not."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from edl_allreduce.core import differing, protocol
from edl_allreduce.core.protocol import NOT_ASKED, Plan
from edl_allreduce.core.standing import Standing
from edl_allreduce.errors import RingBroken
from edl_allreduce.worker.checkpoint.format import fingerprint_of
from edl_allreduce.worker.loop.checkpointing import Checkpointing
from edl_allreduce.worker.loop.orders import Orders
from edl_allreduce.worker.loop.state import TrainingState
from edl_allreduce.worker.loop.steps import Trains
from edl_allreduce.worker.ring.base import Ring

log = logging.getLogger(__name__)

COMPARED_DIGITS = 15
"""Of a fingerprint: so many fit into a whole number that ranks exchange."""
SCHEDULED = "learning_rate"


@dataclass(frozen=True)
class GivenUp:
    """A rank was alone further than the others when their ring began, and went back to where they were."""

    rank: int
    step: int
    evaluated: int
    trusted: bool
    """Several others held the same there, so they are right."""
    fingerprint: str = ""
    """Of what it had come to; that rank alone knows it."""


@dataclass
class SameWeights:
    """One worker's part in it."""

    state: TrainingState
    orders: Orders
    ring: Ring
    trainer: Trains
    keeping: Checkpointing
    fingerprint: str = ""
    """Of the weights, once the last step was made."""
    spoiled: bool = False
    """Others hold other weights, and this worker may be the one that is wrong: nothing of it is kept."""
    asked: int = NOT_ASKED
    """After so many steps the master wants to know the weights."""
    _given_up: GivenUp | None = None
    """Until the ring comes there again."""
    _answer: protocol.Weighed | None = None
    """To be said when all ranks are known to hold the same."""

    # ---------------------------------------------------------------------------------- what is compared

    def compare(self, plan: Plan) -> None:
        """After the last step. Raises as `differ` unless all is well."""
        self.fingerprint = fingerprint_of(self.trainer.state())
        values = self._gathered(self.fingerprint)
        if len(set(values)) > 1:
            self.differ(plan, values)
        log.info("the fingerprint of the weights is %s", self.fingerprint)

    def compare_owners(self, plan: Plan, owners: Sequence[int], step: int) -> None:
        """Before others take the state of one of these ranks, who all made the same `step` steps. As
        `compare`, on all ranks of the ring."""
        if len(owners) < 2:
            return
        own = self._print() if self.ring.rank in owners else "0"
        everybody = self._gathered(own)
        values = [everybody[rank] for rank in owners]
        if len(set(values)) > 1:
            self.differ(plan, values, owners, step)

    def _print(self) -> str:
        """A fingerprint of what is the same for all who made the same steps. Schedules of a learning rate set
        it before each step: whoever has begun the next one may have another already."""
        names = [name for part in self.trainer.names() for name in part]
        named = zip(names, self.trainer.state(), strict=True)
        return fingerprint_of([array for name, array in named if not name.endswith(SCHEDULED)])

    def _gathered(self, fingerprint: str) -> list[int]:
        return [value for (value,) in self.ring.gather([int(fingerprint[:COMPARED_DIGITS], 16)])]

    # ------------------------------------------------------------------------------ when it is not the same

    def differ(
        self,
        plan: Plan,
        values: Sequence[int],
        ranks: Sequence[int] = (),
        step: int | None = None,
        *,
        undecided: bool = False,
        own: str = "",
    ) -> NoReturn:
        """On all ranks of the ring. The master is told who is wrong, or who contradict each other where no
        majority shows that, and the ring ends: others go on without them. `ranks`: whose values these are,
        unless all; `step`: after how many they were, unless that of this worker; `undecided`: those who hold
        the same have it from one of them, so their number says nothing; `own`: the fingerprint of what this
        worker held, unless that of its weights now."""
        ranks, step = ranks or range(plan.size), self.state.step if step is None else step
        odd = [] if undecided else [ranks[place] for place in differing.odd_ranks(values)]
        named = odd or ranks
        self.spoiled = self.ring.rank in named
        if self.spoiled:
            self.keeping.withdraw(self.state)
        prints = self._all_have_withdrawn(named, own)
        seats = [plan.members[rank] for rank in named]
        uids = tuple(seat.uid for seat in seats)
        self.orders.send(protocol.Differs(plan.generation, step, uids, bool(odd), prints))
        workers = [seat.worker_id for seat in seats]
        if odd:
            raise RingBroken(f"worker {', '.join(map(str, workers))} {differing.words(step)}")
        raise RingBroken(differing.nobody_knows(workers, step))

    def _all_have_withdrawn(self, named: Sequence[int], own: str) -> tuple[str, ...]:
        """Whoever is named will be killed as soon as the master hears of it, so nobody says it before the
        checkpoints of those are gone. Their fingerprints; none if somebody was lost meanwhile."""
        try:
            everybody = self._gathered(own or self._print())
        except RingBroken:
            return ()
        return tuple(f"{everybody[rank]:0{COMPARED_DIGITS}x}" for rank in named)

    # ------------------------------------------------------------------------------ what nobody could compare

    def give_way(self, rank: int, standing: Standing, step: int, *, trusted: bool) -> None:
        """On all ranks, when that one goes back to where others are, after `step` steps; a checkpoint of a
        step that nobody could compare is made again, too. An evaluation that is made again writes none."""
        found = ""
        if rank == self.ring.rank:
            found = self._print()
            if standing.step > step:
                self.keeping.withdraw(self.state)
        self._given_up = GivenUp(rank, standing.step, standing.evaluated, trusted, found)

    def _compare_with_given_up(self, plan: Plan) -> None:
        """On all ranks, when they came to where one of them was alone."""
        before, state = self._given_up, self.state
        if before is None or (state.step, state.journal.evaluated) != (before.step, before.evaluated):
            return
        self._given_up = None
        values = self._gathered(before.fingerprint or self._print())
        if len(set(values)) > 1:
            self.differ(plan, values, undecided=not before.trusted, own=before.fingerprint)
        log.info("what rank %d alone had come to is the same, made again", before.rank)

    # -------------------------------------------------------------------------- what the master wants to know

    def begin(self, weigh: int) -> None:
        """A ring begins, and with it maybe a question."""
        self.asked, self._answer, self._given_up = weigh, None, None

    def look(self, plan: Plan) -> None:
        """On all ranks, before anything is made of the weights."""
        self._compare_with_given_up(plan)
        if self.state.step == self.asked:
            self.asked = NOT_ASKED
            if self.ring.rank == 0:
                self._answer = protocol.Weighed(self.state.step, self._print()[:COMPARED_DIGITS])

    def agreed(self) -> None:
        """All ranks hold the same as this one, or did when it looked."""
        if self._answer is not None:
            self.orders.send(self._answer)
            self._answer = None
