"""The elastic loop: wait for a plan, enter its ring, agree on the state, train until something changes.

No framework is imported here: the trainer, the feed and the ring bring theirs. `assemble.py` makes engines.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from edl_allreduce import faults
from edl_allreduce.core import protocol
from edl_allreduce.core.attendance import queries
from edl_allreduce.core.attendance.state import Leave, MasterGone
from edl_allreduce.core.audit import Applied, Begin, Fed, Manifest
from edl_allreduce.core.goodput import Bucket
from edl_allreduce.core.health import Activity
from edl_allreduce.core.protocol import Plan
from edl_allreduce.core.schedule import Schedule, evened
from edl_allreduce.errors import NotFinite, RingBroken, StateDiffers
from edl_allreduce.spec import OnNan
from edl_allreduce.worker.checkpoint.writer import Checkpoints
from edl_allreduce.worker.loop.agreement import Agreement
from edl_allreduce.worker.loop.checkpointing import Checkpointing
from edl_allreduce.worker.loop.diary import Diary
from edl_allreduce.worker.loop.evaluations import Evaluations
from edl_allreduce.worker.loop.feeding import Feeding, boundary_at
from edl_allreduce.worker.loop.left_out import LeftOut
from edl_allreduce.worker.loop.not_finite import NotFiniteLosses
from edl_allreduce.worker.loop.observers import DrawsCurves, NoCallbacks, NoCurves, ObservesSteps
from edl_allreduce.worker.loop.orders import Ending, Orders, StartPoint
from edl_allreduce.worker.loop.pace import Pace
from edl_allreduce.worker.loop.pauses import Pauses
from edl_allreduce.worker.loop.same_weights import SameWeights
from edl_allreduce.worker.loop.settings import LoopSettings
from edl_allreduce.worker.loop.state import TrainingState
from edl_allreduce.worker.loop.steps import (
    Evaluates,
    Feeds,
    OpensFeed,
    StepData,
    StepInput,
    StepResult,
    Trains,
    Votes,
    Written,
)
from edl_allreduce.worker.ring.base import Ring

log = logging.getLogger(__name__)


@dataclass
class Engine:
    """One worker's training, across all its rings. Everything here belongs to the training thread."""

    settings: LoopSettings
    orders: Orders
    ring: Ring
    trainer: Trains
    schedule: Schedule
    diary: Diary
    open_feed: OpensFeed
    export: Callable[[], Written]
    checkpoints: Checkpoints | None = None
    evaluator: Evaluates | None = None
    callbacks: ObservesSteps = field(default_factory=NoCallbacks)
    curves: DrawsCurves = field(default_factory=NoCurves)
    save_pass: Callable[[int], None] | None = None
    """Called on rank 0 after each epoch, with its number."""
    state: TrainingState = field(default_factory=TrainingState)
    generation: int = 0
    """The newest plan that was followed."""
    _everybody_leaves: bool = False
    """All members of the ring were asked to leave."""
    _boundary: int | None = None
    """The step after which this ring ends, once that is voted."""
    _broken: bool = False
    """The last ring did not end in order, so nobody knows what became of its other members."""

    def __post_init__(self) -> None:
        progress = self.orders.progress
        self._pauses = Pauses(progress.ledger)
        self._pace = Pace(progress)
        self._left_out = LeftOut(self.orders)
        self._not_finite = NotFiniteLosses(self.state, self.orders, self.ring, self.settings.on_nan)
        self._keeping = Checkpointing(self.checkpoints, progress.ledger)
        self._weights = SameWeights(self.state, self.orders, self.ring, self.trainer, self._keeping)
        self._evaluations = Evaluations(
            self.evaluator, self.settings.evaluation_steps, self.callbacks, self.settings.virtual_ranks
        )
        self._feeding = Feeding(self.open_feed, self.orders.seat.uid, self.settings.batch)
        compared = self._weights if self.settings.virtual_ranks else None
        self._agreement = Agreement(
            self.state, self.orders, self.ring, self.trainer, self.diary, self.checkpoints, compared
        )

    def begin_from_checkpoint(self) -> None:
        """Take the newest checkpoint, before any ring is there."""
        self._agreement.begin_from_checkpoint()

    def run(self) -> Ending:
        """Until the master releases this worker, or it has to go; nothing half-written is left."""
        ending = self._attend()
        self._keeping.flush()
        self.diary.flush()
        return ending

    def _attend(self) -> Ending:
        while True:
            order = self.orders.next_order(self.generation)
            match order:
                case protocol.NewPlan():
                    self._follow(order)
                case protocol.Export():
                    self._export()
                case protocol.Release():
                    return Ending.RELEASED
                case Leave():
                    return Ending.LEFT
                case protocol.Evicted(reason, keeps):
                    log.warning("evicted: %s", reason)
                    if keeps:
                        self._keep_what_may_be_the_last()
                    return Ending.EVICTED
                case MasterGone(seconds):
                    log.error("no master for %.0f s: ending after %d steps", seconds, self.state.step)
                    return self._abandoned()

    def _abandoned(self) -> Ending:
        """Nobody will ask for the result any more: what is finished is written all the same."""
        if not self._finished() or self._weights.spoiled:
            self._keep_what_may_be_the_last()
            return Ending.ABANDONED
        if self.ring.rank == 0:
            written = self.export()
            if written.trouble:
                log.error("%s", written.trouble)
            log.info("wrote %s", written.path or "no model")
        return Ending.RELEASED

    def _keep_what_may_be_the_last(self) -> None:
        """Whoever goes with the state of a ring that broke cannot know whether anybody else still has it."""
        if self.state.is_agreed and not self._weights.spoiled and (self.ring.rank == 0 or self._broken):
            self._keeping.keep_now(self.state)

    def _export(self) -> None:
        faults.reach("export", rank=self.ring.rank)
        written = self.export()
        self.orders.send(protocol.Exported(written.path, written.trouble))

    # ------------------------------------------------------------------------------ from plan to ring

    def _follow(self, order: protocol.NewPlan) -> None:
        plan = order.plan
        self.generation = plan.generation
        self._pauses.planned()
        log.info("plan %d: rank %s of %d, because %s",
                 plan.generation, plan.rank_of(self.orders.seat.uid), plan.size, order.reason)  # fmt: skip
        self._boundary = None
        self._weights.begin(order.weigh)
        place = self.state.start_point if self.state.is_agreed else None
        expected = place
        if place is None and not order.abort:
            expected = self.orders.wait_for_place(plan.generation)
        # Records are read while the ring forms, from where this worker expects to go on.
        feed = self._feeding.take(plan, expected) if expected is not None else None
        if place is None and not order.abort and not self.orders.wait_for_company(plan.generation):
            _close(feed)
            self._pauses.declined()
            self.orders.declined(plan, self.state.step)
            return
        try:
            self._enter(plan, place)
            if feed is None or self.state.start_point != expected:
                _close(feed)
                feed = self._feeding.open(plan, self.state.start_point)
            self._train(plan, feed)
        except RingBroken as error:
            self._pauses.ring_broke()
            log.warning(
                "the ring of generation %d broke after %d steps: %s", plan.generation, self.state.step, error
            )
            self._broken = True
            self.ring.leave()
            self.orders.left(self.state.step, str(error))
        finally:
            _close(feed)

    def _enter(self, plan: Plan, place: StartPoint | None) -> None:
        self.orders.progress.activity = Activity.JOINING
        if not self.orders.entering(plan, place):
            raise RingBroken("a newer plan is on its way")
        self.ring.join(plan, self.orders.seat.uid)
        self._broken = False
        self._pauses.joined()
        given_up = self._agreement.agree(plan)
        self._pauses.synced()
        state, rank = self.state, self.ring.rank
        self.diary.write(Begin(plan.generation, state.step, rank, plan.size, state.run, given_up))
        if rank == 0:
            self._write_manifest(finished=False)
        self.orders.joined(plan.generation, state.step, state.position)

    # ---------------------------------------------------------------------------------------- training

    def _train(self, plan: Plan, feed: Feeds) -> None:
        """Until the ring ends in order."""
        progress = self.orders.progress
        progress.step, progress.position = self.state.start_point
        self._pace.ring_begins(evened(self.ring.rank, plan.size, self.settings.virtual_ranks))
        while not self._finished():
            if self._evaluate_if_due(plan) and self._finished():
                break
            if self._one_step(plan, feed):
                return
            self._pace.over()
        self._evaluate_if_due(plan)
        self._finish(plan, stopped=False)

    def _finished(self) -> bool:
        return bool(self.state.journal.halted) or self.schedule.finished(*self.state.start_point)

    @property
    def _epoch_is_over(self) -> bool:
        return self.state.position % self.schedule.order.records == 0

    def _one_step(self, plan: Plan, feed: Feeds) -> bool:
        """One update. True when the ring ends at this boundary."""
        state, progress, rank = self.state, self.orders.progress, self.ring.rank
        at = {"rank": rank, "step": state.step, "generation": plan.generation}
        progress.activity = Activity.COMPUTING
        self._pace.begins()
        epoch, into_epoch = divmod(state.position, self.schedule.order.records)
        self.callbacks.before_step(state.step, epoch, first=not into_epoch, journal=state.journal)
        self._pace.takes()
        data = feed.take()
        self._pace.has_taken()
        self._left_out.tell(data.problems)
        faults.reach("compute", **at)
        self._weights.look(plan)
        loss: Any = None

        def meet(own_loss: Any) -> Votes:
            """Called while this thread waits for it, maybe in another one."""
            nonlocal loss
            loss = own_loss
            self.diary.write(Fed(plan.generation, state.step, data.span.epoch, data.records, data.bad))
            switch, stop = self.orders.vote(plan.generation)
            switch = switch or (self._everybody_leaves and self.orders.deserted)
            stop = stop or self.callbacks.wants_stop
            progress.activity = Activity.REDUCING
            faults.reach("reduce", **at)
            return Votes(switch, stop, self.orders.draining, self._pace.meets())

        try:
            result = self.trainer.update(StepInput.of(state.step, plan, rank, data), meet)
        except NotFinite:
            why = self._not_finite.what_happened(plan, state.step, loss, data)
            self._finish(plan, stopped=True, failure=why)
            return True
        except StateDiffers as error:
            self._weights.differ(plan, error.checksums)
        self._weights.agreed()
        self._pace.applied(result.computed, self._pauses.way_in)
        self.diary.write(Applied(plan.generation, state.step))
        faults.reach("applied", **at)
        self._count(epoch, data, result)
        self._tell(plan, data, result)
        return self._ends_here(plan, loss, data, result)

    def _count(self, epoch: int, data: StepData, result: StepResult) -> None:
        """The step is part of the state now."""
        state, progress = self.state, self.orders.progress
        state.step += 1
        state.position += len(data.span)
        if math.isfinite(result.loss) or not result.finite:  # else there was no loss to tell
            state.journal = state.journal.count(epoch, result.loss, len(data.span))
        progress.step, progress.position, progress.loss = state.step, state.position, result.loss
        if self.settings.shares_bad and (self._finished() or self._epoch_is_over):
            self._left_out.share(self.ring)

    def _tell(self, plan: Plan, data: StepData, result: StepResult) -> None:
        """What those who look on hear of a step."""
        state, rank = self.state, self.ring.rank
        with self.orders.progress.user_code():
            self.callbacks.after_step(state.step - 1, result.loss)
        every = self.settings.log_loss_steps
        if every and state.step % every == 0:
            log.info("Loss = %.6f, steps = %d", result.loss, state.step)
        self._pauses.stepped()
        if rank == 0 and self.save_pass is not None and self._epoch_is_over:
            with self.orders.progress.user_code():
                self.save_pass(state.position // self.schedule.order.records - 1)
        if rank == 0:
            seconds = self.orders.progress.step_seconds
            rate = len(data.span) / seconds if seconds else 0.0
            self.curves.step(state.step, loss=result.loss, records_per_second=rate, ring=plan.size)
        pause = self._pauses.over(plan)
        if pause is not None:
            if rank == 0:
                self.curves.pause(state.step, pause.pause, plan.size)
            self.orders.send(pause)

    def _ends_here(self, plan: Plan, loss: Any, data: StepData, result: StepResult) -> bool:
        """After a step: whether the ring ends at this boundary. All ranks decide alike."""
        if not result.finite:
            if self.settings.on_nan is OnNan.STOP:  # a loop that is the user's own has applied it
                why = self._not_finite.what_happened(plan, self.state.step - 1, loss, data)
                self._finish(plan, stopped=True, failure=why)
                return True
            self._not_finite.count(plan, loss, data)
        if self._finished():
            return False
        begins_to_leave = self._notice_if_everybody_leaves(result.draining == plan.size)
        if self.ring.rank == 0:
            self._keeping.after_step(self.state, everybody_begins_to_leave=begins_to_leave)
        if result.stop:
            self._finish(plan, stopped=True)
            return True
        if result.switch and self._boundary is None:
            self._boundary = queries.boundary(self.state.step, draining=bool(result.draining))
            self._look_ahead(plan)
        if self.state.step == self._boundary:
            self._pauses.ring_ended()
            self.ring.leave()
            self.orders.switching(self.state.step)
            return True
        return False

    def _notice_if_everybody_leaves(self, leaves: bool) -> bool:
        """True for the first step at which all members were asked to leave."""
        begins, self._everybody_leaves = leaves and not self._everybody_leaves, leaves
        return begins

    def _look_ahead(self, plan: Plan) -> None:
        """Begin to read for the ring after this one, and let its newcomers do the same."""
        upcoming = self.orders.upcoming(plan.generation)
        batch = self.settings.batch.of(plan.size)
        start = boundary_at(self.schedule, self.state.start_point, batch, self._boundary)
        if upcoming is not None and start is not None:
            self.orders.announce(upcoming, start)
            self._feeding.open_ahead(upcoming, start)

    def _evaluate_if_due(self, plan: Plan) -> bool:
        if not self._evaluations.due(self.state, finished=self._finished()):
            return False
        self._weights.look(plan)
        progress, step = self.orders.progress, self.state.step
        progress.ledger.close(Bucket.STEP, then=Bucket.EVALUATION)
        progress.activity, progress.done = Activity.COMPUTING, 0

        def between() -> None:
            faults.reach("evaluate", rank=self.ring.rank, step=step, done=progress.done)
            progress.done += 1
            if self.orders.doomed(plan.generation):
                raise RingBroken("a newer plan came during the evaluation")

        metrics = self._evaluations.run(self.state, self.ring, between, progress)
        if self.ring.rank == 0:
            self.curves.evaluation(step, metrics)
        self.orders.send(protocol.Evaluated(step, metrics))
        progress.ledger.close(Bucket.EVALUATION)
        return True

    # --------------------------------------------------------------------------------------- the end

    def _finish(self, plan: Plan, *, stopped: bool, failure: str = "") -> None:
        state = self.state
        if self.settings.virtual_ranks:
            self._weights.look(plan)
            self._weights.compare(plan)
            self._weights.agreed()
        self.orders.progress.ledger.close(Bucket.STEP, then=Bucket.FINISHING)
        log.info("Loss = %.6f, steps = %d (%s)",
                 self.orders.progress.loss, state.step, "stopped" if stopped else "finished")  # fmt: skip
        if state.journal.halted:
            log.info("%s", state.journal.halted)
        with self.orders.progress.user_code():
            self.callbacks.end(state.step, state.journal, epoch_is_over=self._epoch_is_over)
        self.curves.flush()
        if self.ring.rank == 0:
            self._write_manifest(finished=not stopped)
        self._leave_finished(stopped=stopped, failure=failure)

    def _leave_finished(self, *, stopped: bool, failure: str) -> None:
        state = self.state
        self.ring.leave()
        self.orders.progress.activity = Activity.IDLE
        if self.ring.rank == 0 and not self._weights.spoiled:
            self._keeping.keep_now(state)
        self.diary.flush()
        warning = ""
        if state.journal.not_finite:
            warning = f"in {state.journal.not_finite} of {state.step} steps the loss was not finite"
        self.orders.done(
            state.step,
            stopped=stopped,
            failure=failure,
            warning=warning,
            fingerprint=self._weights.fingerprint,
        )

    def _write_manifest(self, *, finished: bool) -> None:
        if self.settings.audit_dir:
            manifest = Manifest(
                dataset=self.schedule.order.records,
                finished=finished,
                max_step=self.state.step if self.state.journal.halted else self.schedule.max_step,
                job_name=self.settings.job_name,
                lost_records=self.settings.lost_records,
                fingerprint=self._weights.fingerprint,
            )
            self.diary.write_manifest(manifest)


def _close(feed: Feeds | None) -> None:
    if feed is not None:
        feed.close()
