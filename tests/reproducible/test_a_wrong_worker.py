"""A worker that holds other weights than the rest is named and leaves; the others lose nothing by it."""

from __future__ import annotations

import asyncio
import zlib
from dataclasses import replace

import numpy as np
import pytest

from edl_allreduce.core import protocol
from edl_allreduce.core.differing import odd_ranks, words
from edl_allreduce.core.events import WorkerEvicted
from edl_allreduce.core.job.inbox import Scale
from edl_allreduce.core.job.lifecycle import Phase
from edl_allreduce.errors import StateDiffers
from edl_allreduce.testing.numpy_trainer import NumpyTrainer
from edl_allreduce.testing.scene import OPTIONS, Scene
from edl_allreduce.worker.loop.orders import Ending
from tests.engine import test_whole_jobs
from tests.engine.test_whole_jobs import House


class Comparing(NumpyTrainer):
    """Compares its state with that of the others before it applies anything, as reproducible trainers do."""

    def commit(self, own, **votes):
        state = zlib.crc32(self.chain.tobytes())
        checksums = [row[0] for row in self._ring.gather([state])]
        if len(set(checksums)) > 1:
            raise StateDiffers(checksums)
        return super().commit(own, **votes)


@pytest.fixture
def compared(monkeypatch):
    monkeypatch.setattr(test_whole_jobs, "NumpyTrainer", Comparing)


def rot(house: House, worker_id: int) -> None:
    trainer = house.trainers[worker_id]
    trainer.chain = trainer.chain ^ np.int64(1)


def test_it_is_named_and_leaves_and_the_model_stays_right(tmp_path, compared):
    quiet = House(tmp_path / "quiet", 1).run()[1]
    house = House(tmp_path / "job", 3)
    house.happenings = {20: lambda: rot(house, 1)}
    _, chain = house.run()
    assert chain == quiet, "nothing of the wrong weights reached the others"
    assert house.cluster.workers[1].ending is Ending.EVICTED
    told = [event.text for event in house.shell.status().events if event.kind == WorkerEvicted.kind]
    assert len(told) == 1
    assert told[0].startswith("worker 1 holds other weights than the rest after"), "it is named, once"


def test_of_two_nobody_knows_which_is_wrong(tmp_path, compared):
    house = House(tmp_path, 2)
    house.happenings = {20: lambda: rot(house, 1)}
    result = asyncio.run(house._run())
    assert result.phase is Phase.FAILED
    assert "workers 0, 1 hold different weights after" in result.reason
    assert "no majority" in result.reason


def test_it_is_evicted_although_the_next_ring_is_planned_already():
    scene = Scene(replace(OPTIONS, num_workers=3)).train()
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


def test_between_two_rings_of_two_nobody_knows_which_is_wrong(tmp_path):
    result = asyncio.run(between_rings(tmp_path, 2, 3)._run())
    assert result.phase is Phase.FAILED
    assert "workers 0, 1 hold different weights after" in result.reason


def test_a_majority_decides():
    assert odd_ranks([7, 7, 7]) == ()
    assert odd_ranks([7, 1, 7]) == (1,)
    assert odd_ranks([1, 7, 7, 2, 7]) == (0, 3)
    assert odd_ranks([1, 7]) == odd_ranks([1, 2, 7]) == odd_ranks([1, 1, 7, 7]) == (), "no majority"
