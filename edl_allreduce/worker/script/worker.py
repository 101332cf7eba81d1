"""Who leads this process: a master, a launcher, or nobody."""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import dataclass
from typing import NoReturn

from edl_allreduce import logs
from edl_allreduce.contract import EXIT_FAILED, EXIT_INVALID, JOB_TOKEN, LAST_WORDS_SECONDS
from edl_allreduce.core import protocol, stories
from edl_allreduce.core.deadlines import Deadlines
from edl_allreduce.core.protocol import Plan, Seat
from edl_allreduce.errors import UsageError
from edl_allreduce.spec import JobSpec
from edl_allreduce.worker.attendant import Attendant
from edl_allreduce.worker.lone import LoneMaster
from edl_allreduce.worker.ring.base import Ring
from edl_allreduce.worker.ring.horovod import HorovodRing
from edl_allreduce.worker.ring.solo import SoloRing
from edl_allreduce.worker.start import failure
from edl_allreduce.worker.start.launcher import find_launcher, fixed_plan, fixed_ring
from edl_allreduce.worker.start.launching import connect
from edl_allreduce.worker.start.network import interface_of

log = logging.getLogger("edl_allreduce.elastic")


@dataclass
class ScriptWorker:
    """Ring and orders of this process, and what differs between a master, a launcher and nobody."""

    orders: Attendant
    ring: Ring
    lone: LoneMaster | None = None
    """The master in this very process, where no other leads."""
    full_traceback: bool = False

    @property
    def led(self) -> bool:
        return self.lone is None

    def meet_nobody(self) -> None:
        """A ring of one for the rehearsal; a launcher's ring rehearses together."""
        self.ring.join(Plan(0, (self.orders.seat,)), self.orders.seat.uid)

    def ready(self, message: protocol.Ready) -> None:
        self.orders.watch(self.ring)
        self.orders.ready(message)

    def drain(self) -> None:
        if self.lone is not None:
            self.lone.stop()
        else:
            self.orders.drain()

    def check(self) -> None:
        """Raise what ended the job before its time, where no master elsewhere tells it."""
        if self.lone is not None:
            self.lone.check()

    def close(self) -> bool:
        """Say what is still to be said, then hang up; returns whether the master heard it."""
        self.orders.close()
        told = self.orders.wait_closed(LAST_WORDS_SECONDS)
        self.ring.close()
        return told

    def failed(self, error: BaseException) -> None:
        """Tell the master, and end without the exit handlers of native libraries: one may wait for a peer."""
        if self.lone is not None:
            return
        invalid = isinstance(error, UsageError)
        print(stories.whole(error), file=sys.stderr, flush=True)
        step = self.orders.progress.step
        self.orders.send(failure.report(error, invalid=invalid, step=step, whole=self.full_traceback))
        self.orders.close()
        self.orders.wait_closed(LAST_WORDS_SECONDS)
        _end(EXIT_INVALID if invalid else EXIT_FAILED)


def _end(code: int) -> NoReturn:
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)


def find_worker(spec: JobSpec) -> ScriptWorker:
    """A master said so in the flags, a launcher in its own variables; otherwise this process is alone."""
    if spec.master_addr:
        return _led(spec)
    launcher = find_launcher()
    if launcher is None:
        _log(spec, "this process alone")
        lone = LoneMaster(Plan(1, (Seat("alone", 0, "127.0.0.1"),)), 0)
        return ScriptWorker(lone.attendant(), SoloRing(), lone)
    _log(spec, f"rank {launcher.rank}")
    lone = LoneMaster(fixed_plan(launcher), launcher.rank)
    return ScriptWorker(lone.attendant(), fixed_ring(launcher), lone)


def _led(spec: JobSpec) -> ScriptWorker:
    control = connect(spec)
    seat = control.seat
    _log(spec, f"worker {seat.worker_id}")
    control.start()
    log.info("worker %d (pid %d, uid %s) on %s; master at %s",
             seat.worker_id, os.getpid(), seat.uid, seat.host, spec.master_addr)  # fmt: skip
    timeout = Deadlines(spec.failure_detection_seconds).collective
    token = os.environ.get(JOB_TOKEN, "")
    ring = HorovodRing(control.store.port, interface_of(seat.host), timeout, token)
    return ScriptWorker(control, ring, full_traceback=spec.full_traceback)


def _log(spec: JobSpec, who: str) -> None:
    """Unless the script configured logging itself."""
    logs.print_lines(str(spec.log_level), who, as_json=spec.logs_json, unless_configured=True)
