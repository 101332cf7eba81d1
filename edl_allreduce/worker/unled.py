"""A worker's orders where no master leads: one process alone, or a fixed ring that a launcher started.

The engine hears the same words as from a master, so training is the same: one ring, then the result from
rank 0, then the end. Nobody replaces a lost rank here, so a broken ring ends the job.
"""

from __future__ import annotations

import logging
import sys

from edl_allreduce.contract import EXIT_FAILED, EXIT_INTERRUPTED
from edl_allreduce.core import protocol
from edl_allreduce.core.account import Account
from edl_allreduce.core.protocol import Plan, Seat
from edl_allreduce.core.status import metrics_line
from edl_allreduce.errors import DataError, JobFailed
from edl_allreduce.worker.loop.orders import NextOrder, Progress, StartPoint

log = logging.getLogger(__name__)


class Unled:
    """Gives the one plan there is. `drain` may come from any thread; the rest is the training thread's."""

    draining = False  # who is asked to leave stops the job here
    deserted = False

    def __init__(self, plan: Plan, rank: int, bad_allowed: int = 0) -> None:
        self.seat: Seat = plan.members[rank]
        self.progress = Progress()
        self.path = ""
        """Where the result was written."""
        self.stopped = False
        self.account = Account(bad_allowed)
        self._plan = plan
        self._rank = rank
        self._stop = False
        self._exported = rank != 0
        self._trouble = ""

    def next_order(self, generation: int) -> NextOrder:
        if generation < self._plan.generation:
            return protocol.NewPlan(self._plan, True, "the ring is fixed")
        if not self._exported:
            return protocol.Export()
        return protocol.Release()

    def entering(self, plan: Plan, place: StartPoint | None) -> bool:
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

    def declined(self, plan: Plan, step: int) -> None:
        raise AssertionError("the only ring there is is not called off")

    def joined(self, generation: int, step: int, position: int) -> None:
        """Nobody asks."""

    def upcoming(self, generation: int) -> Plan | None:
        return None

    def announce(self, plan: Plan, place: StartPoint) -> None:
        raise AssertionError("nobody comes to a ring that is fixed")

    def wait_for_place(self, generation: int) -> StartPoint | None:
        """All members come at the same time."""
        return None

    def wait_for_company(self, generation: int) -> bool:
        return True

    def switching(self, step: int) -> None:
        raise AssertionError("nobody votes for another ring where there is only one")

    def done(self, step: int, *, stopped: bool, failure: str, warning: str) -> None:
        if failure:
            raise JobFailed(failure)
        self.stopped, self.account.warning = stopped, warning

    def send(self, message: protocol.FromWorker) -> None:
        match message:
            case protocol.Evaluated() if self._rank == 0:
                log.info("%s", metrics_line(message))
            case protocol.Checkpointed(step, path, error):
                self.account.checkpointed(step, path, error)  # the writer has logged it
            case protocol.BadRecords(data, records):
                text = self.account.left_out(data, records)
                if text:
                    log.warning("%s", text)
                if self.account.too_many:
                    raise DataError(self.account.too_many)
            case protocol.Note(protocol.NOTICE | protocol.NAN, text):
                log.warning("%s", text)
            case protocol.Exported(path, error):
                self._exported, self.path, self._trouble = True, path, error

    def verdict(self, step: int) -> int:
        """Say how the job ended, and give the exit code."""
        remarks = f"; {self.account.remarks}" if self.account.remarks else ""
        missing = "; ".join(filter(None, (self._trouble, self.account.shortfall)))
        if missing:
            print(f"Failed: trained for {step} steps, but {missing}{remarks}", file=sys.stderr)
        else:
            print(f"{'Stopped' if self.stopped else 'Succeeded'}: {step} steps{remarks}")
        if self.path:
            print(f"The trained model is in {self.path}")
        return EXIT_FAILED if missing else EXIT_INTERRUPTED if self.stopped else 0

    def drain(self) -> None:
        """Stop at the next step boundary; with several ranks all of them do."""
        log.info("asked to stop at the next step boundary")
        self._stop = True
