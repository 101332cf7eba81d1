"""All ranks of a reproducible job hold the same weights: what happens when one does not."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from edl_allreduce.core import differing, protocol
from edl_allreduce.core.protocol import NOT_ASKED, Plan
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
        own = fingerprint_of(self.trainer.state()) if self.ring.rank in owners else "0"
        everybody = self._gathered(own)
        values = [everybody[rank] for rank in owners]
        if len(set(values)) > 1:
            self.differ(plan, values, owners, step)

    def _gathered(self, fingerprint: str) -> list[int]:
        return [value for (value,) in self.ring.gather([int(fingerprint[:COMPARED_DIGITS], 16)])]

    # ------------------------------------------------------------------------------ when it is not the same

    def differ(
        self, plan: Plan, values: Sequence[int], ranks: Sequence[int] = (), step: int | None = None
    ) -> NoReturn:
        """On all ranks of the ring. The master is told who is wrong, or who contradict each other where no
        majority shows that, and the ring ends: others go on without them. `ranks`: whose values these are,
        unless all; `step`: after how many they were, unless that of this worker."""
        ranks, step = ranks or range(plan.size), self.state.step if step is None else step
        odd = [ranks[place] for place in differing.odd_ranks(values)]
        named = odd or ranks
        self.spoiled = self.ring.rank in named
        if self.spoiled:
            self.keeping.withdraw(self.state)
        prints = self._all_have_withdrawn(named)
        seats = [plan.members[rank] for rank in named]
        uids = tuple(seat.uid for seat in seats)
        self.orders.send(protocol.Differs(plan.generation, step, uids, bool(odd), prints))
        workers = [seat.worker_id for seat in seats]
        if odd:
            raise RingBroken(f"worker {', '.join(map(str, workers))} {differing.words(step)}")
        raise RingBroken(differing.nobody_knows(workers, step))

    def _all_have_withdrawn(self, named: Sequence[int]) -> tuple[str, ...]:
        """Whoever is named will be killed as soon as the master hears of it, so nobody says it before the
        checkpoints of those are gone. Their fingerprints; none if somebody was lost meanwhile."""
        try:
            everybody = self._gathered(fingerprint_of(self.trainer.state()))
        except RingBroken:
            return ()
        return tuple(f"{everybody[rank]:0{COMPARED_DIGITS}x}" for rank in named)

    # -------------------------------------------------------------------------- what the master wants to know

    def begin(self, weigh: int) -> None:
        """A ring begins, and with it maybe a question."""
        self.asked, self._answer = weigh, None

    def look(self) -> None:
        """Before each step."""
        if self.state.step == self.asked:
            self.asked = NOT_ASKED
            if self.ring.rank == 0:
                found = fingerprint_of(self.trainer.state())[:COMPARED_DIGITS]
                self._answer = protocol.Weighed(self.state.step, found)

    def agreed(self) -> None:
        """All ranks hold the same as this one, or did when it looked."""
        if self._answer is not None:
            self.orders.send(self._answer)
            self._answer = None
