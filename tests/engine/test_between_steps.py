"""What happens between steps: evaluations, checkpoints, bad records, losses, callbacks."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from edl_allreduce.core import protocol
from edl_allreduce.core.attendance.state import MasterGone
from edl_allreduce.core.health import Activity
from edl_allreduce.core.schedule import Span
from edl_allreduce.errors import BadRecord
from edl_allreduce.testing.fake_ring import Break
from edl_allreduce.testing.numpy_trainer import NumpyEvaluator
from edl_allreduce.worker.checkpoint import format as checkpoint
from edl_allreduce.worker.loop.feeding import IndexFeed
from edl_allreduce.worker.loop.observers import NoCallbacks, NoCurves
from edl_allreduce.worker.loop.orders import Ending
from edl_allreduce.worker.loop.steps import StepData

STEPS = 10
MEAN = 49.5


def evaluated(crew, size: int = 2, **flags) -> list[NumpyEvaluator]:
    made = [NumpyEvaluator(100, 8) for _ in range(size)]
    for evaluator in made:
        crew.add(program={"evaluator": evaluator}, **flags)
    return made


# ------------------------------------------------------------------------------------- evaluations


def test_evaluations_are_due_every_so_many_steps_and_at_the_end(crew, complete):
    made = evaluated(crew, evaluation_steps=3)
    crew.run()
    for worker in crew.workers:
        assert worker.said(protocol.Evaluated) == [
            protocol.Evaluated(step, {"mean": MEAN}) for step in (3, 6, 9, STEPS)
        ]
        complete(worker)
    assert [sorted(set(e.measured)) for e in made] == [list(range(7)), list(range(7, 13))], "shared"


def test_without_a_number_of_steps_it_is_done_once_at_the_end(crew):
    evaluated(crew, size=1)
    crew.run()
    assert [told.step for told in crew.said(protocol.Evaluated)] == [STEPS]


def test_a_ring_that_breaks_in_an_evaluation_does_it_again(crew, complete):
    evaluated(crew, evaluation_steps=5)
    crew.workers[1].ring.breaks = [Break("gather", 3)]  # two to agree, one for the run, then the metrics
    crew.run()
    assert len(crew.master.plans) == 2
    for worker in crew.workers:
        assert [told.step for told in worker.said(protocol.Evaluated)] == [5, STEPS]
        complete(worker)


def test_an_evaluation_ends_when_its_ring_is_doomed(crew, complete):
    first, _ = evaluated(crew, evaluation_steps=5)
    orders = [worker.orders for worker in crew.workers]
    measure = first.measure

    def doomed(chunks, between):
        first.measure = measure
        crew.master.plan(*orders, abort=True)
        return measure(chunks, between)

    first.measure = doomed
    crew.run()
    assert "a newer plan came during the evaluation" in [out.reason for out in crew.said(protocol.Out)]
    for worker in crew.workers:
        complete(worker)


class Halts(NoCallbacks):
    """Early stopping after the first evaluation."""

    def after_evaluation(self, journal):
        return msgspec.structs.replace(journal, halted="good enough")


def test_callbacks_may_end_the_training_after_an_evaluation(crew):
    for _ in range(2):
        parts = {"evaluator": NumpyEvaluator(10, 5), "callbacks": Halts()}
        crew.add(program=parts, evaluation_steps=4)
    crew.run()
    assert [(done.step, done.stopped) for done in crew.said(protocol.Done)] == [(4, False)] * 2


class Looks(NoCallbacks):
    def __init__(self, stops_after: int) -> None:
        self.stops_after = stops_after
        self.seen: list[object] = []

    def before_step(self, step, epoch, *, first, journal):
        self.seen.append((step, epoch, first))

    def after_step(self, step, loss):
        self.seen.append(step)

    @property
    def wants_stop(self):
        return len([seen for seen in self.seen if isinstance(seen, int)]) >= self.stops_after

    def end(self, step, journal, *, epoch_is_over):
        self.seen.append(("end", step, epoch_is_over))


def test_callbacks_are_called_between_steps_and_may_stop(crew):
    looks = [Looks(5), Looks(99)]
    for look in looks:
        crew.add(program={"callbacks": look})
    crew.run(audited=False)
    steps = [(step, epoch, first) for step, epoch, first in (
        (0, 0, True), (1, 0, False), (2, 0, False), (3, 0, False), (4, 0, False), (5, 1, True))]  # fmt: skip
    expected = [part for step in steps for part in (step, step[0])]
    for look in looks:
        assert look.seen == [*expected, ("end", 6, False)], "the wish of one travels with its next gradients"


class TellsActivity(NoCallbacks):
    """Notes what heartbeats would say while its hooks run."""

    def __init__(self) -> None:
        self.activity = lambda: None
        self.seen: dict[str, set[object]] = {}

    def _note(self, hook: str) -> None:
        self.seen.setdefault(hook, set()).add(self.activity())

    def before_step(self, step, epoch, *, first, journal):
        self._note("before_step")

    def after_step(self, step, loss):
        self._note("after_step")

    def before_evaluation(self):
        self._note("before_evaluation")

    def after_evaluation(self, journal):
        self._note("after_evaluation")
        return journal

    def end(self, step, journal, *, epoch_is_over):
        self._note("end")


def test_a_worker_that_is_stuck_in_any_callback_can_be_told_from_those_who_wait_for_it(crew):
    hooks = ["before_step", "after_step", "before_evaluation", "after_evaluation", "end", "save_pass"]
    for _ in range(2):
        looks = TellsActivity()
        parts = {"evaluator": NumpyEvaluator(10, 5), "callbacks": looks}
        worker = crew.add(program=parts, evaluation_steps=4)
        looks.activity = lambda progress=worker.orders.progress: progress.activity
        worker.engine.save_pass = lambda number, looks=looks: looks._note("save_pass")
        gather = worker.ring.gather

        def meets(values, looks=looks, gather=gather):
            looks._note("gather")
            return gather(values)

        worker.ring.gather = meets
    crew.run()
    for worker in crew.workers:
        seen = worker.engine.callbacks.seen
        expected = hooks if worker.ring.rank == 0 else hooks[:-1]
        assert {hook: seen[hook] for hook in expected} == {hook: {Activity.COMPUTING} for hook in expected}
        assert Activity.COMPUTING not in seen["gather"], "whoever waits is not judged"


# ------------------------------------------------------------------------------------- checkpoints


def copies_of(worker) -> list[int]:
    """The steps whose state is copied, each as often as it is asked for; the disk may be slower."""
    steps: list[int] = []
    checkpoints = worker.engine.checkpoints
    save = checkpoints.save

    def noting(step, position, journal) -> None:
        steps.append(step)
        save(step, position, journal)

    checkpoints.save = noting
    return steps


def test_checkpoints_are_written_when_due_and_at_the_end(crew, tmp_path):
    where = tmp_path / "kept"
    for _ in range(2):
        crew.add(checkpoint_dir=where, checkpoint_steps=4, keep_checkpoint_max=0)
    saved = [copies_of(worker) for worker in crew.workers]
    crew.run()
    assert saved == [[4, 8, STEPS], []], "only rank 0 copies the state"
    there = [checkpoint.number_of(path) for path in checkpoint.versions(where)]
    assert there[0] == STEPS
    assert set(there) <= {4, 8, STEPS}, "one that the disk was too slow for may be left out"
    assert [told.step for told in crew.said(protocol.Checkpointed)] == there[::-1]


def test_a_job_goes_on_from_its_newest_checkpoint(tmp_path, complete, crew):
    where = tmp_path / "kept"
    kept = {"checkpoint_dir": where, "audit_dir": tmp_path / "audit"}
    for _ in range(2):
        crew.add(max_step=7, **kept)
    crew.run(audited=False)
    again = type(crew)(tmp_path)
    for _ in range(3):
        again.add(**kept)
    again.run()
    assert [joined.step for joined in again.said(protocol.Joined)] == [7] * 3
    assert [note.kind for note in again.said(protocol.Note)] == ["resume"], "one of them says so"
    for worker in again.workers:
        complete(worker)


def test_a_checkpoint_is_written_once_when_everybody_leaves(crew, tmp_path):
    """All members were asked to leave and no master lets them go: they end by themselves, and can go on."""

    def drain() -> None:
        for worker in crew.workers:
            worker.orders.drain()

    def desert() -> None:
        for worker in crew.workers:
            worker.orders.deserted = True
            worker.orders.switching = lambda step, orders=worker.orders: orders.end_with(MasterGone(1.0))

    drains, deserts = crew.at_step(3, drain), crew.at_step(6, desert)

    def computing(step) -> None:
        drains(step)
        deserts(step)

    crew.add(computing=computing, checkpoint_dir=tmp_path / "kept")
    crew.add(checkpoint_dir=tmp_path / "kept")
    steps, others = map(copies_of, crew.workers)
    crew.run(audited=False)
    assert [worker.ending for worker in crew.workers] == [Ending.ABANDONED] * 2
    left = crew.workers[0].engine.state.step
    assert left in (7, 8)
    assert len(steps) == 2 and steps[0] in (4, 5) and steps[1] == left, "at once, and at the end"
    assert not others


def test_a_worker_that_lost_its_ring_and_its_master_keeps_what_it_has(crew, tmp_path):
    crew.add()
    alone = crew.add(checkpoint_dir=tmp_path / "kept")
    for worker in crew.workers:
        worker.orders.left = lambda step, reason, orders=worker.orders: orders.end_with(MasterGone(1.0))
    crew.workers[0].ring.breaks = [Break("sum", 4)]
    crew.run(audited=False)
    assert [worker.ending for worker in crew.workers] == [Ending.ABANDONED] * 2
    assert [told.step for told in alone.said(protocol.Checkpointed)] == [4], "also with another rank than 0"


def test_an_evicted_worker_keeps_what_it_has_and_the_job_goes_on_from_it(crew, tmp_path, complete):
    """A master that heard nobody turned out the last who held the model."""
    kept = {"checkpoint_dir": tmp_path / "kept", "audit_dir": tmp_path / "audit"}
    for _ in range(2):
        worker = crew.add(**kept)
        end = protocol.Evicted("silent for too long")
        worker.orders.left = lambda step, reason, orders=worker.orders, end=end: orders.end_with(end)
    crew.workers[0].ring.breaks = [Break("sum", 4)]
    crew.run(audited=False)
    assert [worker.ending for worker in crew.workers] == [Ending.EVICTED] * 2
    again = type(crew)(tmp_path)
    for _ in range(2):
        again.add(**kept)
    again.run()
    assert [joined.step for joined in again.said(protocol.Joined)] == [4, 4]
    for worker in again.workers:
        complete(worker)


def test_a_worker_that_is_evicted_for_its_weights_keeps_nothing_of_them(crew, tmp_path):
    """It may not know: its ring broke before it could compare them."""
    for _ in range(2):
        worker = crew.add(checkpoint_dir=tmp_path / "kept")
        end = protocol.Evicted("holds other weights than the rest", keeps=False)
        worker.orders.left = lambda step, reason, orders=worker.orders, end=end: orders.end_with(end)
    crew.workers[0].ring.breaks = [Break("sum", 4)]
    crew.run(audited=False)
    assert [worker.ending for worker in crew.workers] == [Ending.EVICTED] * 2
    assert not crew.said(protocol.Checkpointed)


# -------------------------------------------------------------------------- losses that are not finite


def nan_crew(crew, policy: str) -> None:
    """The last record of step 3 gives NaN; in the first epoch it belongs to rank 1."""
    record = crew.order.indices(Span(0, 3 * 6, 4 * 6))[-1]
    for _ in range(2):
        crew.add(on_nan=policy, trainer={"nan_records": frozenset({record})})


def test_a_loss_that_is_not_finite_stops_the_job_before_it_is_applied(crew, replay):
    nan_crew(crew, "stop")
    crew.run(audited=False)
    for worker in crew.workers:
        (done,) = worker.said(protocol.Done)
        assert done.stopped and done.step == 3
        assert (
            "the loss of step 4 is not finite (NaN or infinite), from the records of worker 1" in done.failure
        )
        assert int(worker.trainer.chain[0]) == replay(crew.order, steps=3)
    assert not crew.said(protocol.Exported)


def test_with_skip_such_updates_are_left_out_and_counted(crew, replay):
    """The record comes in the second epoch again, wherever that may be."""
    nan_crew(crew, "skip")
    crew.run(audited=False)
    (note,) = crew.said(protocol.Note)
    assert note.kind == protocol.NoteKind.NAN
    assert note.text.endswith("such updates are left out (--on_nan=skip)")
    for worker in crew.workers:
        (done,) = worker.said(protocol.Done)
        assert not done.failure
        assert done.warning == "in 2 of 10 steps the loss was not finite"
        assert int(worker.trainer.used.sum()) == 60 - 12


def test_with_continue_they_are_applied_and_told(crew, complete):
    nan_crew(crew, "continue")
    crew.run()
    (note,) = crew.said(protocol.Note)
    assert note.text.endswith("training goes on (--on_nan=continue)")
    for worker in crew.workers:
        complete(worker)
        assert worker.engine.state.journal.not_finite == 2


# ------------------------------------------------------------------------------------- bad records


class Damaged(IndexFeed):
    """Cannot read the record 11."""

    def take(self) -> StepData:
        data = super().take()
        (part,) = data.parts
        good = [index for index in data.records if index != 11]
        if len(good) == len(data.records):
            return data
        features = np.array([index for index in part.features if index != 11], np.int64)
        problem = BadRecord("record 11 is bad", index=11, path="somewhere")
        parts = [type(part)(features, None, len(features))]
        return StepData(data.span, parts, good, [11], (problem,))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_bad_records_are_left_out_and_told_each_time(crew, size):
    for _ in range(size):
        crew.add(feed=Damaged)
    crew.run()
    assert [told.records for told in crew.said(protocol.BadRecords)] == [{11: ("record 11 is bad", 0)}] * 2
    for worker in crew.workers:
        expected = np.where(np.arange(30) == 11, 0, 2)
        np.testing.assert_array_equal(worker.trainer.used, expected)


def test_without_a_master_ranks_tell_each_other_at_the_end_of_an_epoch(crew):
    for _ in range(3):
        crew.add(feed=Damaged, shares_bad=True)
    crew.run()
    for worker in crew.workers:
        known = {index for told in worker.said(protocol.BadRecords) for index in told.records}
        assert known == {11}, "whoever met it"


@pytest.mark.parametrize("size", [1, 2])
def test_curves_are_drawn_by_rank_0(crew, size):
    class Curves(NoCurves):
        def __init__(self) -> None:
            self.points: list[int] = []

        def step(self, step, *, loss, records_per_second, ring):
            self.points.append(step)

    drawn = [Curves() for _ in range(size)]
    for curves in drawn:
        crew.add(program={"curves": curves})
    crew.run()
    assert drawn[0].points == list(range(1, STEPS + 1))
    assert not any(curves.points for curves in drawn[1:])
