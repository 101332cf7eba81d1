"""Where the time between two rings goes."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from edl_allreduce import clock
from edl_allreduce.core.goodput import Bucket
from edl_allreduce.core.protocol import Plan, Reformed
from edl_allreduce.worker.loop.ledger import Ledger

log = logging.getLogger(__name__)


@dataclass
class _Pause:
    last_step: float
    noticed: float
    planned: float = 0.0
    joined: float = 0.0
    synced: float = 0.0


class Pauses:
    """For a worker that was in the first of the two rings; a newcomer has no pause.

    Both have a way into the ring, which the ledger keeps in buckets of its own.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.way_in: Bucket | None = None
        """Until the first step of a ring is over: where it belongs to, beyond what a usual step takes."""
        self._last_step = 0.0
        self._now: _Pause | None = None

    def stepped(self) -> None:
        """A step is over."""
        self._last_step = clock.now()

    def ring_ended(self) -> None:
        """All knew of it before."""
        self._now = _Pause(last_step=self._last_step, noticed=self._last_step)
        self._ledger.close(Bucket.STEP, then=Bucket.PLAN)

    def ring_broke(self) -> None:
        """Time passed until this worker noticed. A ring that breaks while it forms belongs to the pause."""
        if self._now is None and self._last_step:
            self._now = _Pause(last_step=self._last_step, noticed=clock.now())
        # What was under way when it broke, or else a step that came to nothing.
        lost = self._ledger.expected or self.way_in or Bucket.NOTICE
        self._ledger.close(lost, then=self._or_newcomer(Bucket.PLAN, Bucket.WAITING))

    def planned(self) -> None:
        """A new plan is here."""
        if self._now is not None:
            self._now.planned = clock.now()
        self._close(then=self._or_newcomer(Bucket.JOIN, Bucket.PREP))

    def declined(self) -> None:
        """The ring of the plan does not come about."""
        self._close(then=self._or_newcomer(Bucket.PLAN, Bucket.WAITING))

    def joined(self) -> None:
        """The new ring stands."""
        if self._now is not None:
            self._now.joined = clock.now()
        self._close(then=self._or_newcomer(Bucket.SYNC, Bucket.PREP))

    def synced(self) -> None:
        """All agree on the state."""
        if self._now is not None:
            self._now.synced = clock.now()
        self._close(then=None)
        self.way_in = self._or_newcomer(Bucket.FIRST_STEP, Bucket.PREP)

    def _or_newcomer(self, survivor: Bucket, newcomer: Bucket) -> Bucket:
        return newcomer if self._now is None else survivor

    def _close(self, then: Bucket | None) -> None:
        self._ledger.close(self._ledger.expected or Bucket.OTHER, then)

    def over(self, plan: Plan) -> Reformed | None:
        """After a step: where the pause went, if this was the first one in a new ring."""
        pause, self._now = self._now, None
        self.way_in = None
        if pause is None:
            return None
        report = Reformed(
            generation=plan.generation,
            size=plan.size,
            notice=pause.noticed - pause.last_step,
            plan=pause.planned - pause.noticed,
            join=pause.joined - pause.planned,
            sync=pause.synced - pause.joined,
            first_step=self._last_step - pause.synced,
        )
        log.info(
            "re-formed: generation %d, %d ranks, pause %.3f s = notice %.3f + plan %.3f + join %.3f "
            "+ sync %.3f + first step %.3f", report.generation, report.size, report.pause, report.notice,
            report.plan, report.join, report.sync, report.first_step,
        )  # fmt: skip
        return report
