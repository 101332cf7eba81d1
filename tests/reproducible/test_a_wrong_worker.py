"""A worker that holds other weights than the rest is named and leaves; the others lose nothing by it."""

from __future__ import annotations

import asyncio
import zlib

import numpy as np
import pytest

from edl_allreduce.core.differing import odd_ranks
from edl_allreduce.core.events import WorkerEvicted
from edl_allreduce.core.job.lifecycle import Phase
from edl_allreduce.errors import StateDiffers
from edl_allreduce.testing.numpy_trainer import NumpyTrainer
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


def test_a_majority_decides():
    assert odd_ranks([7, 7, 7]) == ()
    assert odd_ranks([7, 1, 7]) == (1,)
    assert odd_ranks([1, 7, 7, 2, 7]) == (0, 3)
    assert odd_ranks([1, 7]) == odd_ranks([1, 2, 7]) == odd_ranks([1, 1, 7, 7]) == (), "no majority"
