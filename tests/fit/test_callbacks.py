"""Callbacks of `elastic.fit` on several workers: files are whole, and all decide alike."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

from edl_allreduce.core.health import Activity
from edl_allreduce.core.protocol import Plan, Seat
from edl_allreduce.errors import RingBroken
from edl_allreduce.spec import OnNan
from edl_allreduce.testing.fake_ring import Break, Meeting
from edl_allreduce.worker.fit.call import _anybody
from edl_allreduce.worker.fit.callbacks import FitCallbacks, _Saving
from edl_allreduce.worker.fit.memory import Memory
from edl_allreduce.worker.fit.trainer import CompiledTrainer
from edl_allreduce.worker.loop.journal import Journal
from edl_allreduce.worker.loop.orders import Progress
from edl_allreduce.worker.loop.steps import MicroBatch
from edl_allreduce.worker.ring.solo import SoloRing

pytestmark = pytest.mark.tensorflow


def small() -> Any:
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])


class DiesWhileItWrites:
    """Has written half of a file."""

    def save_weights(self, filepath: Any, **more: Any) -> None:
        Path(filepath).write_bytes(b"half")
        raise KeyboardInterrupt


def test_the_best_weights_so_far_survive_a_kill_while_better_ones_are_written(tmp_path):
    path, model = tmp_path / "best.weights.h5", small()
    checkpoint = keras.callbacks.ModelCheckpoint(path, monitor="loss", mode="min", save_weights_only=True)
    checkpoint.set_model(_Saving(model, lambda: True))
    checkpoint.on_epoch_end(0, {"loss": 1.0})
    whole = path.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        _Saving(DiesWhileItWrites(), lambda: True).save_weights(str(path), overwrite=True)
    assert path.read_bytes() == whole
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    other = small()
    other.load_weights(path)
    for a, b in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_only_one_worker_writes_weights(tmp_path):
    _Saving(small(), lambda: False).save_weights(str(tmp_path / "best.weights.h5"), overwrite=True)
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------ the end of an epoch

RECORDS = 8


class Budget(keras.callbacks.Callback):
    """Time is over on one worker before it is on others."""

    def __init__(self, *, over: bool) -> None:
        super().__init__()
        self.over = over
        self.calls = 0

    def on_epoch_end(self, epoch, logs=None):
        self.calls += 1
        logs["calls"] = self.calls
        self.model.stop_training = self.over


class Worker:
    """What `fit` has on one rank, without a model."""

    def __init__(self, meeting: Meeting, *, over: bool) -> None:
        self.ring, self.progress = meeting.ring(), Progress(Activity.COMPUTING)
        self.budget, model = Budget(over=over), SimpleNamespace(stop_training=False)
        self.budget.set_model(model)
        self.memory = Memory([self.budget])
        self.callbacks = FitCallbacks(
            [self.budget], model, self.memory, records=RECORDS, steps=2, epochs=5, verbose=False,
            leads=lambda: True, anybody=lambda wish: _anybody(self.ring, self.progress, wish),
        )  # fmt: skip

    def end_epoch(self, plan: Plan, uid: str) -> Journal | RingBroken:
        self.ring.join(plan, uid)
        try:
            return self.callbacks.after_evaluation(
                Journal(evaluated=2, metrics={"loss": 0.5}, epoch=0, epoch_records=RECORDS)
            )
        except RingBroken as error:
            return error


def end_epoch(generation: int, *workers: Worker) -> list[Journal | RingBroken]:
    plan = Plan(generation, tuple(Seat(str(place), place, "") for place in range(len(workers))))
    with ThreadPoolExecutor(len(workers)) as threads:
        ending = [threads.submit(w.end_epoch, plan, str(place)) for place, w in enumerate(workers)]
        return [end.result(30) for end in ending]


@pytest.mark.parametrize("wishes", [(False, False), (False, True), (True, True)])
def test_what_one_worker_decides_at_the_end_of_an_epoch_all_do(wishes):
    meeting = Meeting()
    workers = [Worker(meeting, over=over) for over in wishes]
    first, second = end_epoch(1, *workers)
    assert first == second
    assert first.halted == ("a callback ended the training after epoch 1 of 5" if any(wishes) else "")
    assert {worker.progress.activity for worker in workers} == {Activity.COMPUTING}


def test_an_epoch_ends_once_for_callbacks_when_the_ring_breaks_before_all_agreed():
    meeting = Meeting()
    stays, leaves, comes = (Worker(meeting, over=over) for over in (True, False, False))
    leaves.ring.breaks = [Break("gather", 0)]
    assert all(isinstance(end, RingBroken) for end in end_epoch(1, stays, leaves))
    comes.memory.restore(stays.memory.arrays())
    first, second = end_epoch(2, stays, comes)
    assert (stays.budget.calls, comes.budget.calls) == (1, 1), "the newcomer takes over what was counted"
    assert first == second
    assert first.halted and first.callbacks["epoch/0"] == {"loss": 0.5, "calls": 1.0}


def test_whoever_takes_the_state_of_another_forgets_what_it_wanted_itself():
    model = small()
    model.compile("sgd", "mse")
    trainer = CompiledTrainer(model, SoloRing(), Memory([]), on_nan=OnNan.STOP)
    trainer.build(MicroBatch(keras.ops.zeros((4, 2)), {"y": keras.ops.zeros((4, 1))}, 4))
    state = trainer.state()
    model.stop_training = True
    trainer.restore(state)
    assert not model.stop_training
