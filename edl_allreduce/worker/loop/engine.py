"""The elastic loop: wait for a plan, enter its ring, agree on the state, train until something changes."""

from __future__ import annotations

import logging
import math
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np

from edl_allreduce import clock, faults
from edl_allreduce.core import protocol
from edl_allreduce.core.audit import Applied, Begin, Fed, Manifest
from edl_allreduce.core.health import Activity
from edl_allreduce.core.progress import Length
from edl_allreduce.core.protocol import Plan, Seat
from edl_allreduce.core.schedule import Schedule, Span, share
from edl_allreduce.errors import BadRecord, NotFinite, RingBroken
from edl_allreduce.spec import OnNan
from edl_allreduce.worker.checkpoint.files import Checkpoints
from edl_allreduce.worker.control import Leave, MasterGone, Order, Place, Progress
from edl_allreduce.worker.keras.callbacks import Callbacks
from edl_allreduce.worker.keras.evaluation import Evaluator, shown
from edl_allreduce.worker.keras.export import Written
from edl_allreduce.worker.keras.pipeline import MicroBatch, StepData, bad_records
from edl_allreduce.worker.keras.summaries import Summaries
from edl_allreduce.worker.keras.trainer import Contribution, StepResult
from edl_allreduce.worker.loop import journal as journals
from edl_allreduce.worker.loop.diary import Diary
from edl_allreduce.worker.loop.journal import Journal
from edl_allreduce.worker.ring.base import Ring

log = logging.getLogger(__name__)

SHOWN_RECORDS = 20

LEAD_STEPS = 2
"""Steps of the old ring between the vote for the next one and the boundary: meanwhile all its members read
their first records. Whoever drains is not made to wait."""


SHOWN_BAD_RECORDS = 5
"""Of one step, in a worker's log."""


class Trains(Protocol):
    """One update, in two parts; between them nothing of the state changes. A model file, or a user's loop."""

    def compute(self, parts: Sequence[MicroBatch], step: int, offset: int, batch: int) -> Contribution: ...

    def commit(self, own: Contribution, *, switch: bool, stop: bool, drain: bool) -> StepResult: ...

    def state(self) -> list[np.ndarray[Any, Any]]: ...

    def restore(self, arrays: Sequence[np.ndarray[Any, Any]]) -> None: ...


class Feeds(Protocol):
    """This rank's part of one step after the other."""

    def take(self) -> StepData: ...

    def close(self) -> None: ...


class Orders(Protocol):
    """Where orders come from, and where reports go: a master, or nobody (`unled`)."""

    seat: Seat
    progress: Progress

    @property
    def draining(self) -> bool: ...

    @property
    def deserted(self) -> bool: ...

    def next_order(self, generation: int) -> Order: ...

    def upcoming(self, generation: int) -> Plan | None: ...

    def announce(self, plan: Plan, place: Place) -> None: ...

    def wait_for_place(self, generation: int) -> Place | None: ...

    def wait_for_company(self, generation: int) -> bool: ...

    def entering(self, plan: Plan, place: Place | None) -> bool: ...

    def joined(self, generation: int, step: int, position: int) -> None: ...

    def vote(self, generation: int) -> tuple[bool, bool]: ...

    def doomed(self, generation: int) -> bool: ...

    def declined(self, plan: Plan, step: int) -> None: ...

    def left(self, step: int, reason: str) -> None: ...

    def switching(self, step: int) -> None: ...

    def done(self, step: int, *, stopped: bool, failure: str, warning: str) -> None: ...

    def send(self, message: protocol.FromWorker) -> None: ...


class Ending(Enum):
    """How a worker's part in the job ended."""

    RELEASED = "the job is over"
    LEFT = "drained"
    EVICTED = "evicted"
    ABANDONED = "the master is gone"


@dataclass(frozen=True)
class Settings:
    """What the loop must know of the job."""

    minibatch: int
    num_workers: int
    per_worker_batch: bool
    """Keep the batch per worker instead of the global one."""
    log_loss_steps: int
    audit_dir: str
    shares_bad: bool = False
    """No master counts bad records, so ranks tell each other."""
    job_name: str = ""
    lost_records: int = 0
    """Of the data, because parts of its files cannot be read."""
    evaluation_steps: int = 0
    """0: only at the end, where there is validation data."""
    on_nan: OnNan = OnNan.STOP

    def global_batch(self, size: int) -> int:
        return self.minibatch * (size if self.per_worker_batch else self.num_workers)

    def length(self, schedule: Schedule) -> Length:
        """What the master must know to say how far the job is."""
        records, epochs, limit = schedule.order.records, schedule.epochs, schedule.max_step
        return Length(records, epochs, self.global_batch(1), limit, per_worker=self.per_worker_batch)


@dataclass
class _Pause:
    """Where the time between two rings goes, for a worker that was in the first."""

    last_step: float
    noticed: float
    planned: float = 0.0
    joined: float = 0.0
    synced: float = 0.0


@dataclass(frozen=True)
class _Ahead:
    """This worker's first records in a ring that has yet to begin."""

    generation: int
    place: Place
    pipeline: Feeds


@dataclass
class Engine:
    """One worker's training, across all its rings."""

    settings: Settings
    control: Orders
    ring: Ring
    trainer: Trains
    schedule: Schedule
    diary: Diary
    open_pipeline: Callable[..., Feeds]
    export: Callable[[], Written]
    checkpoints: Checkpoints | None = None
    evaluator: Evaluator | None = None
    callbacks: Callbacks = field(default_factory=lambda: Callbacks([]))
    save_pass: Callable[[int], None] | None = None
    """Called on rank 0 after each epoch, with its number."""
    summaries: Summaries = field(default_factory=lambda: Summaries(""))
    step: int = 0
    position: int = 0
    journal: Journal = field(default_factory=Journal)
    has_state: bool = False
    generation: int = 0
    _run: int = 0
    _begun_from: Path | None = None
    _pause: _Pause | None = None
    _last_step: float = 0.0
    _durations: deque[float] = field(default_factory=lambda: deque(maxlen=21))
    _met: set[int] = field(default_factory=set)
    """Bad records."""
    _everybody_leaves: bool = False
    _boundary: int | None = None
    """The step after which this ring ends, once that is voted."""
    _ahead: _Ahead | None = None
    _broken: bool = False
    """The last ring did not end in order, so nobody knows what became of its other members."""

    def run(self) -> Ending:
        """Until the master releases this worker, or it has to go; nothing half-written is left."""
        ending = self._attend()
        if self.checkpoints is not None:
            self.checkpoints.flush()
        return ending

    def _attend(self) -> Ending:
        while True:
            order = self.control.next_order(self.generation)
            match order:
                case protocol.NewPlan():
                    self._follow(order)
                case protocol.Export():
                    self._export()
                case protocol.Release():
                    return Ending.RELEASED
                case Leave():
                    return Ending.LEFT
                case protocol.Evicted(reason):
                    log.warning("evicted: %s", reason)
                    return Ending.EVICTED
                case MasterGone(seconds):
                    log.error("no master for %.0f s: ending after %d steps", seconds, self.step)
                    return self._abandoned()

    def _abandoned(self) -> Ending:
        """Nobody will ask for the result any more: what is finished is written all the same."""
        if not self._finished():
            if self.has_state and (self.ring.rank == 0 or self._broken):
                self._keep()
            return Ending.ABANDONED
        if self.ring.rank == 0:
            written = self.export()
            if written.trouble:
                log.error("%s", written.trouble)
            log.info("wrote %s", written.path or "no model")
        return Ending.RELEASED

    def _follow(self, order: protocol.NewPlan) -> None:
        plan = order.plan
        self.generation = plan.generation
        if self._pause is not None:
            self._pause.planned = clock.now()
        log.info("plan %d: rank %s of %d, because %s",
                 plan.generation, plan.rank_of(self.control.seat.uid), plan.size, order.reason)  # fmt: skip
        self._boundary = None
        place = (self.step, self.position) if self.has_state else None
        expected = place
        if place is None and not order.abort:
            expected = self.control.wait_for_place(plan.generation)
        # Records are read while the ring forms, from where this worker expects to go on.
        pipeline = self._read_ahead(plan, expected) if expected is not None else None
        if place is None and not order.abort and not self.control.wait_for_company(plan.generation):
            self._close(pipeline)
            self.control.declined(plan, self.step)
            return
        try:
            self._enter(plan, place)
            if pipeline is None or (self.step, self.position) != expected:
                self._close(pipeline)
                pipeline = self._open_pipeline(plan, (self.step, self.position))
            self._train(plan, pipeline)
        except RingBroken as error:
            if self._pause is None and self._last_step:
                self._pause = _Pause(last_step=self._last_step, noticed=clock.now())
            log.warning(
                "the ring of generation %d broke after %d steps: %s", plan.generation, self.step, error
            )
            self._broken = True
            self.ring.leave()
            self.control.left(self.step, str(error))
        finally:
            self._close(pipeline)

    def _read_ahead(self, plan: Plan, place: Place) -> Feeds:
        """The records from there on, which are at hand already if the boundary was known."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            if (ahead.generation, ahead.place) == (plan.generation, place):
                return ahead.pipeline
            ahead.pipeline.close()
        return self._open_pipeline(plan, place)

    def _open_pipeline(self, plan: Plan, place: Place) -> Feeds:
        rank = plan.rank_of(self.control.seat.uid)
        batch = self.settings.global_batch(plan.size)
        step, position = place
        return self.open_pipeline(rank=rank, size=plan.size, step=step, position=position, global_batch=batch)

    def _close(self, pipeline: Feeds | None) -> None:
        if pipeline is not None:
            pipeline.close()

    # ---------------------------------------------------------------------------------------- entering

    def _enter(self, plan: Plan, place: Place | None) -> None:
        self.control.progress.activity = Activity.JOINING
        if not self.control.entering(plan, place):
            raise RingBroken("a newer plan is on its way")
        self.ring.join(plan, self.control.seat.uid)
        self._broken = False
        if self._pause is not None:
            self._pause.joined = clock.now()
        self._agree(plan)
        if self._pause is not None:
            self._pause.synced = clock.now()
        rank = self.ring.rank
        self.diary.write(Begin(plan.generation, self.step, rank, plan.size, self._run))
        if rank == 0:
            self._write_manifest(finished=False)
        self.control.joined(plan.generation, self.step, self.position)

    def begin_from_checkpoint(self) -> None:
        """Take the newest checkpoint, as long as no state of a living worker was taken."""
        start = self.checkpoints.newest() if self.checkpoints is not None else None
        if start is None or start.path == self._begun_from:
            return
        self.trainer.restore(start.arrays)
        contents = start.contents
        self.step, self.position, self.journal = contents.step, contents.position, contents.journal
        self._begun_from = start.path

    def _agree(self, plan: Plan) -> None:
        """Everybody goes on from the furthest state; it is sent only if somebody does not have it."""
        table = self._gather_states()
        owners = [rank for rank, row in enumerate(table) if row[0]]
        if not owners:  # only then: a newcomer to a living ring must not keep it waiting for a disk
            self.begin_from_checkpoint()
            table = self._gather_states()
        root = max(owners or range(len(table)), key=lambda rank: (table[rank][1], -rank))
        furthest = [1, *table[root][1:]]
        behind = [rank for rank, row in enumerate(table) if row != furthest and rank != root]
        if behind:
            faults.reach(
                "sync", rank=self.ring.rank, generation=plan.generation, root=int(self.ring.rank == root)
            )
            before = self.step
            memory = journals.encode(self.journal)
            sent = np.frombuffer(memory.ljust(table[root][4])[: table[root][4]], np.uint8).copy()
            *state, sent = self.ring.share_state([*self.trainer.state(), sent], root, behind)
            if self.ring.rank in behind:
                self.trainer.restore(state)
                _, self.step, self.position, _, _, self._run = table[root]
                self.journal = journals.decode(sent.tobytes())
                log.info("took the state of rank %d: %d steps (had %d)", root, self.step, before)
        if not owners:
            self._begin_run(root)
        self.has_state = True
        if self.checkpoints is not None:
            self.checkpoints.forget()

    def _gather_states(self) -> list[list[int]]:
        """Who holds the job's state, and how far it is; equal rows are equal states."""
        size = len(journals.encode(self.journal))
        return self.ring.gather(
            [self.has_state, self.step, self.position, self.journal.evaluated, size, self._run]
        )

    def _begin_run(self, root: int) -> None:
        """Nobody held the job's state: it begins, or comes back from a checkpoint."""
        leads = self.ring.rank == root
        number = self.diary.open_run(self.step, self.position) if leads else 0
        self._run = self.ring.gather([number])[root][0]
        if leads and self.checkpoints is not None and self.checkpoints.passed_over:
            self.control.send(protocol.Note(protocol.WARNING, self.checkpoints.passed_over, once=True))
        if leads and self._begun_from is not None:
            where = f"from {self._begun_from}, after {self.step} steps and {self.position} records"
            log.info("resumed %s", where)
            self.control.send(protocol.Note("resume", f"the job goes on {where}"))

    # ---------------------------------------------------------------------------------------- training

    def _train(self, plan: Plan, pipeline: Feeds) -> None:
        progress = self.control.progress
        progress.step, progress.position = self.step, self.position
        while not self._finished():
            if self._evaluate_if_due(plan) and self._finished():
                break
            began = clock.now()
            if self._one_step(plan, pipeline):
                return
            self._durations.append(clock.now() - began)
            progress.step_seconds = statistics.median(self._durations)
        self._evaluate_if_due(plan)
        self._finish(stopped=False)

    def _finished(self) -> bool:
        return bool(self.journal.halted) or self.schedule.finished(self.step, self.position)

    def _one_step(self, plan: Plan, pipeline: Feeds) -> bool:
        """One update. True when the ring ends at this boundary."""
        progress = self.control.progress
        rank, at = self.ring.rank, {"rank": self.ring.rank, "step": self.step, "generation": plan.generation}
        progress.activity = Activity.COMPUTING
        epoch, into_epoch = divmod(self.position, self.schedule.order.records)
        self.callbacks.before_step(self.step, epoch, first=not into_epoch, journal=self.journal)
        data = pipeline.take()
        self._tell_bad(data.problems)
        faults.reach("compute", **at)
        offset = share(data.span, rank, plan.size).start - data.span.start
        own = self.trainer.compute(data.parts, self.step, offset, len(data.span))
        self.diary.write(Fed(plan.generation, self.step, data.span.epoch, data.records, data.bad))
        switch, stop = self.control.vote(plan.generation)
        switch = switch or (self._everybody_leaves and self.control.deserted)
        stop = stop or self.callbacks.wants_stop
        progress.activity = Activity.REDUCING
        faults.reach("reduce", **at)
        drain = self.control.draining
        try:
            result = self.trainer.commit(own, switch=switch, stop=stop, drain=drain)
        except NotFinite:
            self._finish(stopped=True, failure=self._not_finite(plan, self.step, own.loss, data))
            return True
        self.diary.write(Applied(plan.generation, self.step))
        faults.reach("applied", **at)
        self.step += 1
        self.position += len(data.span)
        if math.isfinite(result.loss) or not result.finite:  # else there was no loss to tell
            self.journal = self.journal.count(epoch, result.loss, len(data.span))
        progress.step, progress.position, progress.loss = self.step, self.position, result.loss
        if self.settings.shares_bad and (
            self._finished() or self.position % self.schedule.order.records == 0
        ):
            self._share_bad()
        self.callbacks.after_step(self.step - 1, result.loss)
        every = self.settings.log_loss_steps
        if every and self.step % every == 0:
            log.info("Loss = %.6f, steps = %d", result.loss, self.step)
        self._last_step = clock.now()
        if rank == 0 and self.save_pass is not None and self.position % self.schedule.order.records == 0:
            self.save_pass(self.position // self.schedule.order.records - 1)
        if rank == 0:
            rate = len(data.span) / progress.step_seconds if progress.step_seconds else 0.0
            self.summaries.step(self.step, loss=result.loss, records_per_second=rate, ring=plan.size)
        self._report_pause(plan)
        if not result.finite:
            if self.settings.on_nan is OnNan.STOP:  # a loop that is the user's own has applied it
                self._finish(stopped=True, failure=self._not_finite(plan, self.step - 1, own.loss, data))
                return True
            self._count_not_finite(plan, own.loss, data)
        if self._finished():
            return False
        self._keep_if_due(everybody_leaves=result.draining == plan.size)
        if result.stop:
            self._finish(stopped=True)
            return True
        if result.switch and self._boundary is None:
            self._boundary = self.step + (0 if result.draining else LEAD_STEPS)
            self._look_ahead(plan)
        if self.step == self._boundary:
            self._pause = _Pause(last_step=self._last_step, noticed=self._last_step)
            self.ring.leave()
            self.control.switching(self.step)
            return True
        return False

    def _look_ahead(self, plan: Plan) -> None:
        """Begin to read for the ring after this one, and let its newcomers do the same."""
        upcoming = self.control.upcoming(plan.generation)
        step, position = self.step, self.position
        while step != self._boundary and not self.schedule.finished(step, position):
            position += len(self.schedule.span(position, self.settings.global_batch(plan.size)))
            step += 1
        if upcoming is None or step == self.step or self.schedule.finished(step, position):
            return
        place = (step, position)
        self.control.announce(upcoming, place)
        self._ahead = _Ahead(upcoming.generation, place, self._read_ahead(upcoming, place))

    def _count_not_finite(self, plan: Plan, loss: Any, data: StepData) -> None:
        """The user wants to go on; they are told at once, and how often at the end."""
        first = not self.journal.not_finite  # on every rank or on none: the journal is the same everywhere
        what = self._not_finite(plan, self.step - 1, loss, data) if first else ""
        self.journal = msgspec.structs.replace(self.journal, not_finite=self.journal.not_finite + 1)
        if first and self.ring.rank == 0:
            skips = self.settings.on_nan is OnNan.SKIP
            goes_on = "such updates are left out" if skips else "training goes on"
            text = f"{what}; {goes_on} (--on_nan={self.settings.on_nan})"
            self.control.send(protocol.Note(protocol.NAN, text))

    def _not_finite(self, plan: Plan, step: int, loss: Any, data: StepData) -> str:
        """Whose records gave the loss that is not finite. All ranks ask together."""
        own = math.isfinite(float(loss))
        if not own:
            log.error("the loss of these records is %s: %s", float(loss), data.records[:SHOWN_RECORDS])
        told = zip(plan.members, self.ring.gather([own]), strict=True)
        ids = [str(seat.worker_id) for seat, (finite,) in told if not finite]
        where = f"from the records of worker {', '.join(ids)}" if ids else "as the sum over all workers"
        return (
            f"the loss of step {step + 1} is not finite (NaN or infinite), {where}. Is the learning rate too "
            "high, or is there a division by zero or a logarithm of it? The worker's log names the records"
        )

    def _finish(self, *, stopped: bool, failure: str = "") -> None:
        log.info("Loss = %.6f, steps = %d (%s)",
                 self.control.progress.loss, self.step, "stopped" if stopped else "finished")  # fmt: skip
        if self.journal.halted:
            log.info("%s", self.journal.halted)
        over = self.position % self.schedule.order.records == 0
        self.callbacks.end(self.step, self.journal, epoch_is_over=over)
        self.summaries.flush()
        if self.ring.rank == 0:
            self._write_manifest(finished=not stopped)
        self.ring.leave()
        self.control.progress.activity = Activity.IDLE
        if self.ring.rank == 0:
            self._keep()
        warning = ""
        if self.journal.not_finite:
            warning = f"in {self.journal.not_finite} of {self.step} steps the loss was not finite"
        self.control.done(self.step, stopped=stopped, failure=failure, warning=warning)

    # -------------------------------------------------------------------------------------- evaluation

    def _evaluate_if_due(self, plan: Plan) -> bool:
        """The whole validation data, shared between the ranks. A ring that breaks meanwhile does it again."""
        if self.evaluator is None or self.step == 0 or self.journal.evaluated == self.step:
            return False
        every = self.settings.evaluation_steps
        if not (self._finished() or (every and self.step % every == 0)):
            return False
        began = clock.now()
        progress = self.control.progress
        progress.activity, progress.done = Activity.COMPUTING, 0
        mine = share(Span(0, 0, self.evaluator.chunks), self.ring.rank, plan.size)
        self.callbacks.before_evaluation()

        def between() -> None:
            faults.reach("evaluate", rank=self.ring.rank, step=self.step, done=progress.done)
            progress.done += 1
            if self.control.doomed(plan.generation):
                raise RingBroken("a newer plan came during the evaluation")

        own = self.evaluator.measure(range(mine.start, mine.stop), between)
        progress.activity = Activity.REDUCING
        rows = self.ring.gather(own.view(np.int64).tolist())  # doubles as they are, bit by bit
        sums = np.array(rows, np.int64).view(np.float64)
        metrics = self.evaluator.conclude(np.array([math.fsum(column) for column in sums.T]))
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        self.journal = self.callbacks.after_evaluation(
            msgspec.structs.replace(self.journal, evaluated=self.step, metrics=finite)
        )
        log.info("evaluation after %d steps: %s (%d records in %.1f s)",
                 self.step, shown(finite), self.evaluator.records, clock.now() - began)  # fmt: skip
        if self.ring.rank == 0:
            self.summaries.evaluation(self.step, metrics)
        self.control.send(protocol.Evaluated(self.step, metrics))
        return True

    # ------------------------------------------------------------------------------------- checkpoints

    def _keep_if_due(self, *, everybody_leaves: bool) -> None:
        """One rank copies the state; it is written while training goes on."""
        leaving, self._everybody_leaves = everybody_leaves and not self._everybody_leaves, everybody_leaves
        if self.checkpoints is None:
            return
        if self.ring.rank == 0 and (self.checkpoints.due(self.step) or leaving):
            self.checkpoints.save(self.step, self.position, self.journal)

    def _keep(self) -> None:
        """Write a checkpoint and wait until it is on disk."""
        if self.checkpoints is not None:
            self.checkpoints.save(self.step, self.position, self.journal)
            self.checkpoints.flush()

    def _report_pause(self, plan: Plan) -> None:
        """After the first step of a new ring: tell where the pause went."""
        pause, self._pause = self._pause, None
        if pause is None:
            return
        report = protocol.Reformed(
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
        if self.ring.rank == 0:
            self.summaries.pause(self.step, report.pause, plan.size)
        self.control.send(report)

    def _tell_bad(self, problems: Sequence[BadRecord]) -> None:
        """Who counts them hears each record whenever it is met, so that nobody has to remember."""
        for problem in problems[:SHOWN_BAD_RECORDS]:
            log.warning("left out: %s", problem)
        if problems:
            self._met.update(problem.index for problem in problems)
            self.control.send(bad_records("training data", problems))

    def _share_bad(self) -> None:
        """At the end of each epoch, so that all ranks decide alike, whoever met which record."""
        mine = sorted(self._met)
        longest = max(count for (count,) in self.ring.gather([len(mine)]))
        if longest:
            rows = self.ring.gather([*mine, *[-1] * (longest - len(mine))])
            others = {index for row in rows for index in row if index >= 0} - self._met
            self._met |= others
            met = {index: (f"record {index}, which another rank met", 0) for index in others}
            self.control.send(protocol.BadRecords("training data", met))

    def _write_manifest(self, *, finished: bool) -> None:
        if self.settings.audit_dir:
            manifest = Manifest(
                dataset=self.schedule.order.records,
                finished=finished,
                max_step=self.step if self.journal.halted else self.schedule.max_step,
                job_name=self.settings.job_name,
                lost_records=self.settings.lost_records,
            )
            self.diary.write_manifest(manifest)

    def _export(self) -> None:
        faults.reach("export", rank=self.ring.rank)
        written = self.export()
        self.control.send(protocol.Exported(written.path, written.trouble))
