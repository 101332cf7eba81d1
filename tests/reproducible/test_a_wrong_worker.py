"""A worker that holds other weights than the rest is named and leaves; the others lose nothing by it."""

from __future__ import annotations

import asyncio
import threading
import zlib
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from edl_allreduce.core import protocol
from edl_allreduce.core.differing import (
    MOST_ROUNDS,
    Doubt,
    GiveUp,
    GoBack,
    Holder,
    decide,
    odd_ranks,
    verdict,
    words,
)
from edl_allreduce.core.events import WorkerEvicted
from edl_allreduce.core.job import talk
from edl_allreduce.core.job.inbox import Adopt, Scale
from edl_allreduce.core.job.lifecycle import Phase
from edl_allreduce.core.job.turn import Turn
from edl_allreduce.core.protocol import Plan, Seat
from edl_allreduce.errors import RingBroken, StateDiffers
from edl_allreduce.testing.fake_ring import Meeting
from edl_allreduce.testing.numpy_trainer import NumpyTrainer
from edl_allreduce.testing.scene import OPTIONS, Scene
from edl_allreduce.worker.loop.orders import Ending
from edl_allreduce.worker.loop.same_weights import SameWeights
from edl_allreduce.worker.loop.state import TrainingState
from tests.engine import test_whole_jobs
from tests.engine.test_whole_jobs import House


class Comparing(NumpyTrainer):
    """Compares its state with that of the others before it applies anything, as reproducible trainers do."""

    rots: ClassVar[list[tuple[int, int]]] = []
    """Rank and step: there the memory of a worker changes, once for each, in this order."""

    def compute(self, step):
        own = super().compute(step)
        if self.rots[:1] == [(step.rank, step.number)]:
            self.rots.pop(0)
            self.chain = self.chain ^ np.int64(1)
        return own

    def commit(self, own, **votes):
        state = zlib.crc32(self.chain.tobytes())
        checksums = [row[0] for row in self._ring.gather([state])]
        if len(set(checksums)) > 1:
            raise StateDiffers(checksums)
        return super().commit(own, **votes)


@pytest.fixture
def compared(monkeypatch):
    monkeypatch.setattr(test_whole_jobs, "NumpyTrainer", Comparing)
    monkeypatch.setattr(Comparing, "rots", [])
    return Comparing


COMPARED = replace(OPTIONS, reproducible=True)


class ComparingHouse(House):
    """Its workers are of the kind that compares."""

    def __init__(self, directory: Path, workers: int) -> None:
        super().__init__(directory, workers)
        self.spec = replace(self.spec, reproducible=True)


def rot(house: House, worker_id: int) -> None:
    trainer = house.trainers[worker_id]
    trainer.chain = trainer.chain ^ np.int64(1)


def test_it_is_named_and_leaves_and_the_model_stays_right(tmp_path, compared):
    quiet = House(tmp_path / "quiet", 1).run()[1]
    house = ComparingHouse(tmp_path / "job", 3)
    house.happenings = {20: lambda: rot(house, 1)}
    _, chain = house.run()
    assert chain == quiet, "nothing of the wrong weights reached the others"
    assert house.cluster.workers[1].ending is Ending.EVICTED
    told = [event.text for event in house.shell.status().events if event.kind == WorkerEvicted.kind]
    assert len(told) == 1
    assert told[0].startswith("worker 1 holds other weights than the rest after"), "it is named, once"


def warnings(house: House) -> list[str]:
    return [e.text for e in house.shell.status().events if e.kind == protocol.NoteKind.WARNING]


@pytest.mark.parametrize("kept", [True, False], ids=["from a checkpoint", "from the beginning"])
def test_of_two_nobody_knows_which_is_wrong_so_steps_are_made_again_and_show_it(tmp_path, compared, kept):
    quiet = House(tmp_path / "quiet", 1).run()[1]
    house = ComparingHouse(tmp_path / "job", 2)
    house.spec = replace(house.spec, min_workers=2)
    if kept:
        where = {"checkpoint_dir": str(tmp_path / "checkpoints"), "checkpoint_steps": 5}
        house.spec = replace(house.spec, keep_checkpoint_max=3, **where)
    compared.rots = [(1, 20)]
    _, chain = house.run()
    assert not compared.rots
    assert chain == quiet
    assert [house.cluster.workers[i].ending for i in (0, 1)] == [Ending.EVICTED] * 2
    assert house.cluster.launched == [0, 1, 2, 3]
    doubt, found = warnings(house)
    assert doubt.startswith("workers 0, 1 hold different weights after 20 steps"), "who, and when"
    assert "no majority says which are right" in doubt
    assert found.count("worker") == 1 and "worker 1 (127.0.0.1) held others" in found, (
        "and then: who was wrong"
    )
    begins = next(step for before, step in pairwise(house.steps) if step <= before)
    assert begins == (15 if kept else 0), "the checkpoint of step 20 was withdrawn"


def test_workers_that_contradict_each_other_twice_fail_the_job(tmp_path, compared):
    house = ComparingHouse(tmp_path, 2)
    house.spec = replace(house.spec, min_workers=2)
    compared.rots = [(1, 20), (0, 12)]
    result = asyncio.run(house._run())
    assert result.phase is Phase.FAILED
    assert result.reason.startswith("workers 2, 3 hold different weights after 12 steps")
    assert "no single wrong bit: look at the machines (127.0.0.1)" in result.reason
    assert len(warnings(house)) == 1, "the first time was told, and nobody came to that step again"


def test_it_is_evicted_although_the_next_ring_is_planned_already():
    scene = Scene(replace(COMPARED, num_workers=3)).train()
    past = scene.actors[1].generation
    scene.give(Scale(5)).until(lambda: scene.ring == 5)
    assert scene.actors[1].generation > past
    for says in (1, 2):
        scene.say(says, protocol.Differs(past, 20, (scene.actors[0].uid,)))
        assert scene.told(WorkerEvicted.kind) == [f"worker 0 {words(20)}"], "once"
    scene.until(lambda: scene.ring == 5)
    assert not scene.actors[0].alive


def between_rings(directory, workers: int, more: int) -> House:
    """At step 20 others come; the memory of worker 0 changes after the last step of the ring before them."""
    house = House(directory, workers)
    house.spec, house.awaited = replace(house.spec, reproducible=True), more

    def others_come() -> None:
        ring = house.cluster.workers[0].ring
        leave = ring.leave

        def rot_and_leave() -> None:
            ring.leave = leave
            rot(house, 0)
            leave()

        ring.leave = rot_and_leave
        house.shell.scale(more)

    house.happenings = {20: others_come}
    return house


def test_between_two_rings_it_is_found_before_anybody_takes_its_state(tmp_path):
    quiet = House(tmp_path / "quiet", 1).run()[1]
    house = between_rings(tmp_path / "job", 3, 5)
    _, chain = house.run()
    assert chain == quiet
    assert house.cluster.workers[0].ending is Ending.EVICTED
    told = [event.text for event in house.shell.status().events if event.kind == WorkerEvicted.kind]
    assert len(told) == 1 and told[0].startswith("worker 0 holds other weights than the rest after")


def test_between_two_rings_of_two_the_newcomer_takes_the_state_of_neither(tmp_path):
    quiet = House(tmp_path / "quiet", 1).run()[1]
    house = between_rings(tmp_path / "job", 2, 3)
    _, chain = house.run()
    assert chain == quiet
    assert [house.cluster.workers[i].ending for i in (0, 1)] == [Ending.EVICTED] * 2
    doubt, found = warnings(house)
    assert doubt.startswith("workers 0, 1 hold different weights after")
    assert found.count("worker") == 1 and "worker 0 (127.0.0.1) held others" in found


def test_a_majority_decides():
    assert odd_ranks([7, 7, 7]) == ()
    assert odd_ranks([7, 1, 7]) == (1,)
    assert odd_ranks([1, 7, 7, 2, 7]) == (0, 3)
    assert odd_ranks([1, 7]) == odd_ranks([1, 2, 7]) == odd_ranks([1, 1, 7, 7]) == (), "no majority"


PAIR = (Holder(0, "one", "a"), Holder(1, "other", "b"))


def test_without_a_majority_steps_are_made_again_but_not_for_ever():
    doubt = Doubt(20, PAIR)
    assert isinstance(decide(doubt, None), GoBack)
    assert isinstance(decide(Doubt(21, PAIR), replace(doubt, is_open=False)), GoBack), "it came further"
    for step in (5, 20):
        again = decide(Doubt(step, (Holder(2, "third"), Holder(3, "one"))), doubt)
        assert isinstance(again, GiveUp)
        assert "(one, other, third)" in again.reason


def test_what_they_come_to_when_they_are_made_again_shows_who_was_wrong():
    doubt = Doubt(20, PAIR)
    assert "worker 1 (other) held others" in verdict(doubt, "a")
    assert "worker 0 (one), worker 1 (other) held others" in verdict(doubt, "c"), "both"
    lost = replace(doubt, holders=(PAIR[0], Holder(1, "other")))
    assert "worker 1 (other) did not live to tell" in verdict(lost, "a")
    assert "wrong for a moment" in verdict(replace(doubt, holders=PAIR[:1] * 2), "a")


def test_a_master_asks_those_who_make_the_steps_again():
    scene = Scene(replace(COMPARED, num_workers=2)).train()
    both = scene.actors[0], scene.actors[1]
    contradiction = protocol.Differs(both[0].generation, 20, tuple(a.uid for a in both), False, ("a", "b"))
    scene.say(0, contradiction)
    scene.say(1, contradiction)
    assert len(scene.told(protocol.NoteKind.WARNING)) == 1
    assert len(scene.told(WorkerEvicted.kind)) == 2
    scene.until(lambda: scene.ring == 2)
    plan = [m for m in scene.actors[2].heard if isinstance(m, protocol.NewPlan)][-1]
    assert plan.weigh == 20
    scene.say(2, protocol.Weighed(20, "b"))
    scene.say(2, protocol.Weighed(20, "b"))
    assert ["worker 0 (host) held others" in text for text in scene.told(protocol.NoteKind.WARNING)[1:]] == [
        True
    ]
    scene.give(Scale(3)).until(lambda: scene.ring == 3)
    plan = [m for m in scene.actors[2].heard if isinstance(m, protocol.NewPlan)][-1]
    assert plan.weigh == protocol.NOT_ASKED, "it knows"


@pytest.mark.parametrize("decided", [True, False])
def test_what_was_found_wrong_is_not_kept_also_by_who_hears_of_it_late(decided):
    scene = Scene(COMPARED).train()
    uids = scene.actors[0].uid, scene.actors[1].uid
    scene.cut(1).freeze(1)
    scene.actors[1].alive = False  # so that its end is not noticed
    scene.say(0, protocol.Differs(scene.actors[0].generation, 20, uids, decided))
    assert [m.keeps for m in scene.actors[0].heard if isinstance(m, protocol.Evicted)] == [False]
    scene.actors[1].alive, scene.actors[1].frozen = True, False
    scene.connect(1)
    assert [m.keeps for m in scene.actors[1].heard if isinstance(m, protocol.Evicted)] == [False]


def without_a_master(scene: Scene) -> tuple[Scene, protocol.Differs]:
    """Both contradict each other when no master is there; the next one knows neither."""
    pair = [scene.actors[0], scene.actors[1]]
    told = protocol.Differs(pair[0].generation, 20, tuple(a.uid for a in pair), False, ("a", "b"))
    second = Scene(replace(scene.state.options, recover_until=scene.now + 60), now=scene.now)
    second.give(Adopt((0, 1), (0, 1), 2, 2))
    for actor in pair:
        second.actors[actor.worker_id] = replace(actor, link=0, plan=None, joined=False, heard=[])
    return second, told


def test_a_contradiction_that_a_new_master_hears_from_one_after_the_other_is_one():
    scene, told = without_a_master(Scene(COMPARED).train())
    scene.connect(0).say(0, told).wait(0.5)
    scene.connect(1).say(1, told)
    assert scene.phase is not Phase.FAILED, scene.state.reason
    assert len(scene.told(WorkerEvicted.kind)) == 2
    assert len(scene.told(protocol.NoteKind.WARNING)) == 1
    scene.until(lambda: scene.ring == 2)
    assert scene.launched == [2, 3]
    scene.say(2, protocol.Weighed(20, "c"))
    assert "worker 0 (host), worker 1 (host) held others" in scene.told(protocol.NoteKind.WARNING)[-1]


def test_workers_that_were_started_by_hand_are_not_waited_for():
    scene = Scene(replace(COMPARED, num_workers=0, min_workers=2))
    scene.comes(0).comes(1).until(lambda: scene.ring == 2)
    uids = scene.actors[0].uid, scene.actors[1].uid
    scene.say(0, protocol.Differs(scene.actors[0].generation, 20, uids, False))
    assert scene.phase is Phase.FAILED
    assert scene.state.reason.startswith("workers 0, 1 hold different weights after 20 steps")
    assert "--num_workers=0" in scene.state.reason and "start the job again" in scene.state.reason


def test_a_job_does_not_go_back_for_ever():
    earlier = Doubt(20, PAIR, rounds=MOST_ROUNDS)
    assert isinstance(decide(Doubt(21, PAIR, rounds=MOST_ROUNDS), earlier), GoBack)
    last = decide(Doubt(21, PAIR, rounds=MOST_ROUNDS + 1), earlier)
    assert isinstance(last, GiveUp) and "(the last were one, other)" in last.reason
    scene = Scene(COMPARED).train()
    for step in range(1, MOST_ROUNDS + 2):
        one, other = (scene.actors[i] for i in scene.alive)
        scene.say(one.worker_id, protocol.Differs(one.generation, step, (one.uid, other.uid), False))
        assert (scene.phase is Phase.FAILED) == (step > MOST_ROUNDS)
        if step <= MOST_ROUNDS:
            scene.until(lambda: scene.ring == 2)


def differs(**fields: object) -> Callable[[Scene], protocol.Differs]:
    """What a member might say of another one, but for these."""

    def made(scene: Scene) -> protocol.Differs:
        right = protocol.Differs(scene.actors[0].generation, 20, (scene.actors[0].uid,))
        return replace(right, **fields)

    return made


@pytest.mark.parametrize(
    ("options", "says", "made"),
    [
        (COMPARED, 2, differs()),
        (OPTIONS, 1, differs()),
        (COMPARED, 1, differs(generation=1000)),
        (COMPARED, 1, differs(generation=0)),
        (COMPARED, 1, differs(step=-1)),
        (COMPARED, 1, differs(step=10**9)),
        (COMPARED, 1, differs(decided=False, fingerprints=("a" * 1000,))),
    ],
    ids=["a newcomer", "a job of another kind", "no such ring", "no ring", "before", "beyond", "long"],
)
def test_what_no_member_can_know_ends_nobody(options, says, made):
    scene = Scene(options).train()
    scene.check = lambda before, after, effects: None  # an anomaly is what is looked for
    scene.script.prepares = False
    scene.comes(2).say(says, made(scene))
    assert not scene.told(WorkerEvicted.kind) and scene.state.doubt is None
    assert len(scene.told("anomaly")) == 1


def test_a_newcomer_does_not_say_who_was_wrong():
    scene = Scene(COMPARED).train()
    scene.check = lambda before, after, effects: None
    uids = scene.actors[0].uid, scene.actors[1].uid
    scene.say(0, protocol.Differs(scene.actors[0].generation, 20, uids, False, ("a", "b")))
    scene.until(lambda: scene.ring == 2)
    scene.script.prepares = False
    scene.comes(9).say(9, protocol.Weighed(20, "b"))
    assert len(scene.told(protocol.NoteKind.WARNING)) == 1
    scene.say(2, protocol.Weighed(20, "a"))
    assert len(scene.told(protocol.NoteKind.WARNING)) == 2


def test_a_worker_that_talked_too_much_does_not_swallow_what_the_master_found():
    scene = Scene(COMPARED).train()
    scene.check = lambda before, after, effects: None
    uids = scene.actors[0].uid, scene.actors[1].uid

    def talk_too_much(worker_id: int) -> None:
        while not talk.is_spent(Turn(scene.state, scene.now), worker_id):
            scene.say(worker_id, protocol.Note(protocol.NoteKind.NOTICE, "x" * 100_000))

    talk_too_much(0)
    scene.say(0, protocol.Differs(scene.actors[0].generation, 20, uids, False, ("a", "b")))
    scene.until(lambda: scene.ring == 2)
    talk_too_much(2)
    scene.say(2, protocol.Weighed(20, "b"))
    doubt, found = scene.told(protocol.NoteKind.WARNING)
    assert "no majority" in doubt and "worker 0 (host) held others" in found


def test_nobody_is_named_before_the_wrong_checkpoint_is_gone():
    """The master kills whoever is named."""
    meeting, plan = Meeting(), Plan(1, tuple(Seat(str(i), i, "") for i in range(3)))
    story: list[str] = []
    told = threading.Event()

    class Told:
        def send(self, message: object) -> None:
            story.append("told")
            told.set()

    class Slow:
        def withdraw(self, state: TrainingState) -> None:
            told.wait(0.2)
            story.append("withdrawn")

    def go(rank: int) -> None:
        ring = meeting.ring()
        ring.join(plan, str(rank))
        trainer = NumpyTrainer(ring, 1)
        trainer.chain += rank == 0
        weights = SameWeights(TrainingState(), Told(), ring, trainer, Slow())
        with pytest.raises(RingBroken, match="worker 0 holds other weights"):
            weights.differ(plan, [1, 0, 0])

    threads = [threading.Thread(target=go, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert story == ["withdrawn", "told", "told", "told"]
