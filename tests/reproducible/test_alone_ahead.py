"""Who alone is further than the others when a ring breaks makes the same again with them, so that it can be
compared: whatever is wrong in it or in them by then does not stay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from edl_allreduce.core import protocol
from edl_allreduce.core.events import WorkerEvicted
from edl_allreduce.core.standing import Origin, Standing, origin
from edl_allreduce.errors import RingBroken
from edl_allreduce.testing.fake_ring import Break
from edl_allreduce.testing.numpy_trainer import NumpyEvaluator
from edl_allreduce.testing.thread_cluster import ThreadWorker
from edl_allreduce.worker.loop.diary import audit
from edl_allreduce.worker.loop.orders import Ending
from tests.engine.conftest import Crew, assert_complete
from tests.engine.test_whole_jobs import House
from tests.reproducible.test_a_wrong_worker import rot, warnings

NEW = Standing(0, 0, 0, -1, 90, 0)
BEFORE = Standing(1, 20, 120, 10, 90, 0)
AHEAD = Standing(1, 21, 126, 10, 90, 0)
LONG_AGO = Standing(1, 5, 30, -1, 90, 0)
EVALUATED = BEFORE._replace(evaluated=20)


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ([NEW, NEW], Origin(0, ())),
        ([NEW, NEW._replace(step=6)], Origin(1, ())),
        ([NEW, AHEAD], Origin(1, (1,))),
        ([AHEAD, BEFORE, AHEAD, NEW], Origin(0, (0, 2))),
        ([AHEAD, BEFORE, BEFORE], Origin(1, (1, 2), 0)),
        ([BEFORE, AHEAD], Origin(0, (0,), 1)),
        ([EVALUATED, BEFORE, BEFORE], Origin(1, (1, 2), 0)),
        ([AHEAD, EVALUATED, BEFORE, BEFORE], Origin(2, (2, 3), 0)),
        ([BEFORE, EVALUATED], Origin(0, (0,), 1)),
        ([BEFORE, EVALUATED, EVALUATED], Origin(1, (1, 2))),
        ([AHEAD, LONG_AGO], Origin(0, (0,))),
        ([AHEAD, LONG_AGO, BEFORE], Origin(2, (2,), 0)),
        ([AHEAD, BEFORE._replace(run=1)], Origin(0, (0,))),
    ],
    ids=str,
)
def test_who_is_alone_gives_way(table, expected):
    assert origin(table, comparable=True) == expected
    alone = origin(table, comparable=False)
    assert alone.gives_way is None
    assert table[alone.root].step == max(s.step for s in table if s.is_agreed or expected.alike == ())


@pytest.fixture
def crew(tmp_path: Path) -> Crew:
    return Crew(tmp_path)


def test_a_newcomer_that_took_a_checkpoint_which_was_withdrawn_does_not_begin_with_it(crew, tmp_path):
    flags = {"checkpoint_dir": tmp_path / "checkpoints", "reproducible": True, "virtual_workers": 6}
    first = crew.add(max_step=5, **flags)
    crew.run()
    newcomer = Crew(tmp_path / "again").add(**flags)
    newcomer.engine.begin_from_checkpoint()
    assert newcomer.engine.state.step == 5
    first.engine.checkpoints.withdraw(5)
    with pytest.raises(
        FileNotFoundError, match="version-5, from which this worker would begin, was withdrawn"
    ):
        newcomer.engine.begin_from_checkpoint()


# ---------------------------------------------------------------------------------- real loops, fake master

STEPS = 10


@pytest.fixture
def apart(crew):
    """Workers of which the first alone has the sum of step 4 when their ring breaks."""

    def add(count: int, **flags: object) -> None:
        for number in range(count):
            worker = crew.add(
                num_workers=count, minibatch_size=6 // count, reproducible=True, virtual_workers=6, **flags
            )
            if number:
                worker.ring.breaks = [Break("summed", 4)]

    return add


@pytest.mark.parametrize("count", [2, 3])
def test_it_makes_the_step_again_and_comes_to_the_same(crew, apart, count, tmp_path):
    program = {"bits": {"processor": "this one"}}
    apart(count, checkpoint_dir=tmp_path / "checkpoints", checkpoint_steps=5, program=program)
    crew.run()
    again = [joined.step for joined in crew.said(protocol.Joined) if joined.generation == 2]
    assert again == [4] * count, "where those were who can be compared"
    assert not crew.said(protocol.Differs)
    assert len(crew.master.plans) == 2
    for worker in crew.workers:
        assert_complete(worker)
    verdict = audit(str(crew.directory / "audit"))
    assert verdict.redone == 1
    written = [(c.step, c.fingerprint) for c in crew.said(protocol.Checkpointed)]
    assert [step for step, _ in written] == [5, 5, 10], "what nobody could compare is written again"
    assert written[0] == written[1]


@pytest.mark.parametrize("behind", [0, 1])
def test_who_makes_an_evaluation_again_keeps_the_checkpoint_of_its_step(crew, behind, tmp_path):
    for _ in range(2):
        crew.add(
            num_workers=2, minibatch_size=3, reproducible=True, virtual_workers=6, evaluation_steps=5,
            checkpoint_dir=tmp_path / "checkpoints", checkpoint_steps=5,
            program={"bits": {"processor": "this one"}, "evaluator": NumpyEvaluator(100, 8)},
        )  # fmt: skip
    worker = crew.workers[behind]
    conclude = worker.engine.evaluator.conclude

    def lost(sums):
        worker.engine.evaluator.conclude = conclude
        crew.meeting.break_ring(worker.ring.generation, "lost the last word of the evaluation")
        raise RingBroken("lost the last word of the evaluation")

    worker.engine.evaluator.conclude = lost
    crew.run()
    assert [joined.step for joined in crew.said(protocol.Joined)] == [0, 0, 5, 5]
    assert [told.step for told in crew.said(protocol.Evaluated)].count(5) == 3, "again, by both"
    assert sorted(path.name for path in (tmp_path / "checkpoints").glob("version-*")) == [
        "version-10",
        "version-5",
    ]
    assert not crew.said(protocol.Differs)


def test_in_the_default_mode_nobody_makes_a_step_again(crew):
    for number in range(2):
        crew.add().ring.breaks = [Break("summed", 4)] * number
    crew.run()
    assert [j.step for j in crew.said(protocol.Joined) if j.generation == 2] == [5, 5]


# ------------------------------------------------------------------------------- real loops and a real master


def broken_house(directory: Path, workers: int, wrong: int) -> House:
    """Worker 0 alone has the sum of step 20 when the ring breaks, and the memory of one changes then."""
    house = House(directory, workers)
    house.spec = replace(
        house.spec, reproducible=True, min_workers=workers, checkpoint_dir=str(directory / "checkpoints"),
        checkpoint_steps=7,
    )  # fmt: skip
    begin = house.cluster._begin

    def begin_apart(worker: ThreadWorker) -> Callable[[], Ending]:
        run, ring, number = begin(worker), worker.ring, worker.worker_id
        if 0 < number < workers:
            ring.breaks = [Break("summed", 20)]
        leave = ring.leave

        def rot_and_leave() -> None:
            ring.leave = leave
            rot(house, number)
            leave()

        if number == wrong:
            ring.leave = rot_and_leave
        return run

    house.cluster._begin = begin_apart
    return house


def evicted(house: House) -> list[int]:
    return sorted(i for i, worker in house.cluster.workers.items() if worker.ending is Ending.EVICTED)


@pytest.mark.parametrize("wrong", [0, 1])
def test_of_two_one_is_wrong_when_one_is_ahead_so_nothing_of_both_stays(tmp_path, wrong):
    quiet = House(tmp_path / "quiet", 1).run()[1]
    house = broken_house(tmp_path / "job", 2, wrong)
    _, chain = house.run()
    assert chain == quiet
    assert evicted(house) == [0, 1]
    doubt, found = warnings(house)
    assert doubt.startswith("workers 0, 1 hold different weights after 21 steps")
    assert found.count("worker") == 1 and f"worker {wrong} (127.0.0.1) held others" in found


def test_the_one_that_is_ahead_is_wrong_and_most_are_right(tmp_path):
    quiet = House(tmp_path / "quiet", 1).run()[1]
    house = broken_house(tmp_path / "job", 3, 0)
    house.spec = replace(house.spec, min_workers=2)
    _, chain = house.run()
    assert chain == quiet
    assert evicted(house) == [0]
    told = [event.text for event in house.shell.status().events if event.kind == WorkerEvicted.kind]
    assert len(told) == 1 and told[0].startswith("worker 0 holds other weights than the rest after 21 steps")


def test_those_that_are_behind_contradict_each_other_and_the_one_ahead_goes_on(tmp_path):
    quiet = House(tmp_path / "quiet", 1).run()[1]
    house = broken_house(tmp_path / "job", 3, 1)
    house.spec = replace(house.spec, min_workers=1)
    _, chain = house.run()
    assert chain == quiet
    assert evicted(house) == [1, 2]
