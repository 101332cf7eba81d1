"""Where the time between two rings goes."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from edl_allreduce import clock
from edl_allreduce.core.protocol import Plan, Reformed

log = logging.getLogger(__name__)


@dataclass
class _Pause:
    last_step: float
    noticed: float
    planned: float = 0.0
    joined: float = 0.0
    synced: float = 0.0


class Pauses:
    """For a worker that was in the first of the two rings; a newcomer has no pause."""

    def __init__(self) -> None:
        self._last_step = 0.0
        self._now: _Pause | None = None

    def stepped(self) -> None:
        """A step is over."""
        self._last_step = clock.now()

    def ring_ended(self) -> None:
        """All knew of it before."""
        self._now = _Pause(last_step=self._last_step, noticed=self._last_step)

    def ring_broke(self) -> None:
        """Time passed until this worker noticed. A ring that breaks while it forms belongs to the pause."""
        if self._now is None and self._last_step:
            self._now = _Pause(last_step=self._last_step, noticed=clock.now())

    def planned(self) -> None:
        """A new plan is here."""
        if self._now is not None:
            self._now.planned = clock.now()

    def joined(self) -> None:
        """The new ring stands."""
        if self._now is not None:
            self._now.joined = clock.now()

    def synced(self) -> None:
        """All agree on the state."""
        if self._now is not None:
            self._now.synced = clock.now()

    def over(self, plan: Plan) -> Reformed | None:
        """After a step: where the pause went, if this was the first one in a new ring."""
        pause, self._now = self._now, None
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
