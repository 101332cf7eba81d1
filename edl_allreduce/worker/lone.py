"""A master in this very process, for one process alone or a fixed ring that a launcher started.

It says the same words as a master elsewhere, so training is the same: one plan, then the result from rank 0,
then the end. Nobody replaces a lost rank here, so a broken ring ends the job.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from queue import SimpleQueue

from edl_allreduce.contract import EXIT_FAILED, EXIT_INTERRUPTED
from edl_allreduce.core import protocol
from edl_allreduce.core.account import Account
from edl_allreduce.core.deadlines import Deadlines
from edl_allreduce.core.protocol import Plan
from edl_allreduce.core.status import metrics_line
from edl_allreduce.errors import DataError, EdlError, JobFailed
from edl_allreduce.worker.attendant import Attendant

log = logging.getLogger(__name__)


class LoneMaster:
    """Leads one rank of the one ring there is. It is the stream to itself: `send` is the worker's end."""

    clean = True

    def __init__(self, plan: Plan, rank: int, bad_allowed: int = 0, fingerprint: str = "") -> None:
        """`fingerprint`: which the weights must have at the end; empty: any."""
        self.account = Account(bad_allowed, expected=fingerprint)
        self.path = ""
        """Where the result was written."""
        self.stopped = False
        self._plan = plan
        self._rank = rank
        self._words: SimpleQueue[protocol.FromMaster | None] = SimpleQueue()
        self._missing = ""
        """Why there is no result."""
        self._failure: EdlError | None = None

    def attendant(self) -> Attendant:
        """The worker's end of this master."""
        seat = self._plan.members[self._rank]
        control = Attendant(lambda hello: self, seat, deadlines=Deadlines(), master_grace=0.0)
        control.start()
        return control

    def stop(self) -> None:
        """Stop at the next step boundary; with several ranks all of them do. From any thread."""
        log.info("asked to stop at the next step boundary")
        self._words.put(protocol.Stop("asked by the user"))

    def check(self) -> None:
        """Raise what ended the job before its time, if anything did."""
        if self._failure is not None:
            raise self._failure

    def verdict(self, step: int) -> int:
        """Say how the job ended, and give the exit code."""
        self.check()
        remarks = f"; {self.account.remarks}" if self.account.remarks else ""
        mismatch = "" if self.stopped else self.account.mismatch
        missing = "; ".join(filter(None, (self._missing, self.account.shortfall, mismatch)))
        if missing:
            print(f"Failed: trained for {step} steps, but {missing}{remarks}", file=sys.stderr)
        else:
            print(f"{'Stopped' if self.stopped else 'Succeeded'}: {step} steps{remarks}")
        if self.account.fingerprint:
            print(f"The fingerprint of the weights is {self.account.fingerprint} (SHA-256)")
        if self.path:
            print(f"The trained model is in {self.path}")
        return EXIT_FAILED if missing else EXIT_INTERRUPTED if self.stopped else 0

    # -------------------------------------------------------------------------------------- the stream

    def __iter__(self) -> Iterator[protocol.FromMaster]:
        yield protocol.Welcome()
        while (message := self._words.get()) is not None:
            yield message

    def close(self) -> None:
        self._words.put(None)

    def send(self, message: protocol.FromWorker) -> None:
        """What the worker says, and what is said to that."""
        match message:
            case protocol.Ready() if self._failure is None:
                self._words.put(protocol.NewPlan(self._plan, True, "the ring is fixed"))
            case protocol.Ready():
                self._release()
            case protocol.Out(_, step, reason):
                self._failure = JobFailed(
                    f"the ring broke after {step} steps ({reason}), and without a master nobody re-forms it. "
                    "`elasticdl train` starts the same job with a master."
                )
                self._release()
            case protocol.Done():
                self._done(message)
            case protocol.Exported(path, error):
                self.path, self._missing = path, error
                self._release()
            case protocol.Evaluated() if self._rank == 0:
                log.info("%s", metrics_line(message))
            case protocol.Checkpointed(step, path, error):
                self.account.checkpointed(step, path, error)  # the writer has logged it
            case protocol.BadRecords(data, records):
                self._left_out(data, records)
            case protocol.Note(protocol.NoteKind.NOTICE | protocol.NoteKind.NAN, text):
                log.warning("%s", text)

    def _done(self, message: protocol.Done) -> None:
        self.stopped, self.account.warning = message.stopped, message.warning
        self.account.fingerprint = message.fingerprint
        if message.failure and self._failure is None:
            self._failure = JobFailed(message.failure)
        if self._rank == 0 and self._failure is None:
            self._words.put(protocol.Export())
        else:
            self._release()

    def _left_out(self, data: str, records: dict[int, tuple[str, int]]) -> None:
        text = self.account.left_out(data, records)
        if text:
            log.warning("%s", text)
        if self.account.too_many and self._failure is None:
            self._failure = DataError(self.account.too_many)
            self._words.put(protocol.Stop(self.account.too_many))

    def _release(self) -> None:
        self._words.put(protocol.Release())
        self._words.put(None)
