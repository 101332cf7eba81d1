"""A worker's orders where no master leads: one process alone, or a fixed ring that a launcher started.

The engine hears the same words as from a master, so training is the same: one ring, then the result from
rank 0, then the end. Nobody replaces a lost rank here, so a broken ring ends the job.
"""

from __future__ import annotations

import logging

from edl_allreduce.core.membership.types import Plan, Seat
from edl_allreduce.errors import JobFailed
from edl_allreduce.rpc import messages
from edl_allreduce.worker.control import Order, Place, Progress

log = logging.getLogger(__name__)


class Unled:
    """Gives the one plan there is. `drain` may come from any thread; the rest is the training thread's."""

    draining = False  # who is asked to leave stops the job here
    deserted = False

    def __init__(self, plan: Plan, rank: int) -> None:
        self.seat: Seat = plan.members[rank]
        self.progress = Progress()
        self.path = ""
        """Where the result was written."""
        self.stopped = False
        self.warning = ""
        self._plan = plan
        self._rank = rank
        self._stop = False
        self._exported = rank != 0

    def next_order(self, generation: int) -> Order:
        if generation < self._plan.generation:
            return messages.NewPlan(self._plan, True, "the ring is fixed")
        if not self._exported:
            return messages.Export()
        return messages.Release()

    def entering(self, plan: Plan, place: Place | None) -> bool:
        return True

    def doomed(self, generation: int) -> bool:
        return False

    def vote(self, generation: int) -> tuple[bool, bool]:
        return False, self._stop

    def left(self, step: int, reason: str) -> None:
        raise JobFailed(
            f"the ring broke after {step} steps ({reason}), and without a master nobody re-forms it. "
            "`elasticdl train` starts the same job with a master."
        )

    def joined(self, generation: int, step: int, position: int) -> None:
        """Nobody asks."""

    def upcoming(self, generation: int) -> Plan | None:
        return None

    def announce(self, plan: Plan, place: Place) -> None:
        raise AssertionError("nobody comes to a ring that is fixed")

    def wait_for_place(self, generation: int) -> Place | None:
        """All members come at the same time."""
        return None

    def wait_for_company(self, generation: int) -> bool:
        return True

    def switching(self, step: int) -> None:
        raise AssertionError("nobody votes for another ring where there is only one")

    def done(self, step: int, *, stopped: bool, failure: str, warning: str) -> None:
        if failure:
            raise JobFailed(failure)
        self.stopped, self.warning = stopped, warning

    def send(self, message: messages.FromWorker) -> None:
        if isinstance(message, messages.Evaluated) and self._rank == 0:
            log.info("%s", messages.metrics_line(message))
        if isinstance(message, messages.Note) and message.kind in (messages.NOTICE, messages.NAN):
            log.warning("%s", message.text)
        if isinstance(message, messages.Exported):
            if message.error:
                raise JobFailed(f"the result could not be written: {message.error}")
            self._exported, self.path = True, message.path

    def drain(self) -> None:
        """Stop at the next step boundary; with several ranks all of them do."""
        log.info("asked to stop at the next step boundary")
        self._stop = True
