"""Sums that begin during the backward pass: the same weights as without, and all of a step or nothing."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from edl_allreduce.errors import NotFinite, RingBroken
from edl_allreduce.spec import GradientCompression, OnNan
from edl_allreduce.worker.keras.buckets import MEGABYTE, buckets
from edl_allreduce.worker.keras.trainer import Trainer
from edl_allreduce.worker.keras.zoo import ModelDefinition
from edl_allreduce.worker.loop.steps import MicroBatch, StepInput, Votes
from edl_allreduce.worker.ring.solo import SoloRing

pytestmark = pytest.mark.tensorflow

BATCH = 12
TINY = 1 / MEGABYTE
"""A bucket for each gradient."""


class Ring(SoloRing):
    """Notes which sums were begun while a step ran, and can break at one of them when others have arrived."""

    chained = True
    """Each group waits for those before it. TensorFlow, too, keeps all that is stateful in that order."""

    def __init__(self) -> None:
        self.began: list[int] = []
        self.breaks_at: int | None = None
        self._arrived: list[Any] = []

    def sum(self, tensors: Sequence[Any], group: int = 0, *, halved: bool = False) -> list[Any]:
        if halved:
            rounded = self.sum([tf.cast(t, tf.float16) for t in tensors], group)
            return [tf.cast(r, t.dtype) for r, t in zip(rounded, tensors, strict=True)]
        # Groups come in the order of their numbers while the step is traced, and 0 is the last.
        kinds = [t.dtype for t in tensors]
        with tf.control_dependencies(self._arrived if self.chained else []):
            summed = tf.numpy_function(
                lambda *values: self._summed(group, values), tensors, kinds, stateful=self.chained
            )
        self._arrived = [] if group == 0 else [*self._arrived, *summed]
        for total, tensor in zip(summed, tensors, strict=True):
            total.set_shape(tensor.shape)
        return list(summed)

    def _summed(self, group: int, values: tuple[Any, ...]) -> tuple[Any, ...]:
        self.began.append(group)
        if group == self.breaks_at:
            raise RuntimeError("the peer is gone")  # TensorFlow makes an UnknownError of it, as of Horovod's
        return values


SETTLE_SECONDS = 0.5
"""How long something is given to happen that must not."""


class LateRing(Ring):
    """Groups arrive in any order, and one of them after the last."""

    chained = False

    def __init__(self) -> None:
        super().__init__()
        self.late: int | None = None
        self.last_arrived = threading.Event()
        self.changed: Any = lambda: False
        """Whether what must not happen has happened."""

    def _summed(self, group: int, values: tuple[Any, ...]) -> tuple[Any, ...]:
        if group == self.late:
            assert self.last_arrived.wait(20), "the last group did not arrive before this one"
            settle(self.changed)
        totals = super()._summed(group, values)
        if group == 0:
            self.last_arrived.set()
        return totals


def settle(changed: Any) -> None:
    end = time.monotonic() + SETTLE_SECONDS
    while not changed() and time.monotonic() < end:
        time.sleep(0.01)


def model():
    return keras.Sequential(
        [
            keras.layers.Input((5,)),
            keras.layers.Dense(8, activation="relu", kernel_regularizer=keras.regularizers.L2(0.01)),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(3),
        ]
    )


class Fails(keras.layers.Layer):
    """Fails for a negative first feature, with the kind of error that a broken ring has."""

    def call(self, inputs):
        def check(values):
            if values[0, 0] < 0:
                raise RuntimeError("a record that the model cannot take")
            return values

        checked = tf.numpy_function(check, [inputs], tf.float32)
        checked.set_shape(inputs.shape)
        return inputs + tf.stop_gradient(checked - inputs)


def linear_model():
    return keras.Sequential([keras.layers.Input((5,)), keras.layers.Dense(4), keras.layers.Dense(3)])


def model_that_fails():
    return keras.Sequential([keras.layers.Input((5,)), keras.layers.Dense(4), Fails(), keras.layers.Dense(3)])


def loss(labels, predictions):
    return keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)


def make_trainer(
    ring: Any, make: Any = model, optimizer: Any = keras.optimizers.Adam, **settings: Any
) -> Trainer:
    definition = ModelDefinition(
        path=Path("test.py"),
        model=make,
        loss=loss,
        optimizer=lambda: optimizer(0.01),
        feed=lambda dataset, mode, metadata: dataset,
    )
    trainer = Trainer(definition, ring, seed=3, **settings)
    trainer.build(part(0, BATCH))
    return trainer


def part(start: int, stop: int, shift: float = 10.0) -> MicroBatch:
    random = np.random.default_rng(0)
    x = random.normal(size=(BATCH, 5)).astype("float32") + np.float32(shift)
    y = random.integers(0, 3, BATCH)
    return MicroBatch(tf.constant(x[start:stop]), tf.constant(y[start:stop]), stop - start)


def same(one: Trainer, other: Trainer) -> None:
    for expected, got in zip(one.state(), other.state(), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("sizes", "megabytes", "expected"),
    [
        ([1, 1, 1], 0.0, [[2, 1, 0]]),
        ([1, 8, 3, 3], 4.0, [[3, 2], [1], [0]]),
        ([8, 1, 1], 4.0, [[2, 1, 0]]),
        ([20, 1, 20], 0.0, [[2], [1, 0]]),
        ([20, 1, 20], 100.0, [[2, 1, 0]]),
    ],
)
def test_gradients_that_are_ready_first_go_first(sizes, megabytes, expected):
    assert buckets([size * MEGABYTE for size in sizes], megabytes) == expected


@pytest.mark.parametrize("on_nan", OnNan)
def test_buckets_give_the_weights_of_one_sum_whatever_the_parts(on_nan):
    ring = Ring()
    whole, split = make_trainer(SoloRing(), on_nan=on_nan), make_trainer(ring, on_nan=on_nan, bucket_mb=TINY)
    ring.began.clear()
    for step, cuts in enumerate([[], [6], [4, 8], []]):
        parts = [part(*edge) for edge in itertools.pairwise([0, *cuts, BATCH])]
        a = whole.step(StepInput(step, parts, 0, BATCH))
        b = split.step(StepInput(step, parts, 0, BATCH))
        assert b.loss == pytest.approx(a.loss, rel=1e-5)
    same(whole, split)
    groups = len(split.model.trainable_variables)
    assert ring.began == [*range(1, groups), 0] * 4, "the same sums on every rank, whatever it computes"
    ring.began.clear()
    assert split.step(StepInput(4, [], 0, BATCH), switch=True).switch
    assert ring.began == [*range(1, groups), 0], "also without a record"


def test_votes_are_asked_for_once_when_the_own_part_is_computed():
    trainer = make_trainer(Ring(), bucket_mb=TINY)
    losses: list[float] = []

    def meet(own: Any) -> Votes:
        losses.append(float(own))
        return Votes(switch=True, drain=True, seconds=2.5)

    result = trainer.update(StepInput(0, [part(0, 5), part(5, BATCH)], 0, BATCH), meet)
    assert result.switch and not result.stop and result.draining == 1 and result.computed == (2.5,)
    assert losses == [pytest.approx(result.loss, rel=1e-5)]


@pytest.mark.parametrize("on_nan", OnNan)
def test_a_break_between_two_buckets_leaves_the_state_untouched_and_the_step_is_made_again(on_nan):
    ring = Ring()
    whole, trainer = (
        make_trainer(SoloRing(), on_nan=on_nan),
        make_trainer(ring, on_nan=on_nan, bucket_mb=TINY),
    )
    step = StepInput(0, [part(0, BATCH)], 0, BATCH)
    before = trainer.state()
    for breaks_at in (1, 3, 0):
        ring.began.clear()
        ring.breaks_at = breaks_at
        with pytest.raises(RingBroken):
            trainer.step(step)
        assert ring.began[-1] == breaks_at, "it broke, and where it should"
        for expected, got in zip(before, trainer.state(), strict=True):
            np.testing.assert_array_equal(got, expected)
    ring.breaks_at = None
    trainer.step(step)
    whole.step(step)
    same(whole, trainer)


@pytest.mark.parametrize("on_nan", OnNan)
def test_a_break_after_the_last_bucket_has_arrived_leaves_the_state_untouched(on_nan):
    ring = LateRing()
    trainer = make_trainer(ring, on_nan=on_nan, bucket_mb=TINY)
    before = trainer.state()
    weights = [v.numpy() for v in trainer.model.trainable_variables]
    ring.changed = lambda: any(
        not np.array_equal(v.numpy(), old)
        for v, old in zip(trainer.model.trainable_variables, weights, strict=True)
    )
    ring.began.clear()
    ring.last_arrived.clear()
    ring.late = ring.breaks_at = 2
    with pytest.raises(RingBroken):
        trainer.step(StepInput(0, [part(0, BATCH)], 0, BATCH))
    assert sorted(ring.began) == [*range(len(weights))] and ring.began[-1] == 2, "it failed after all others"
    for expected, got in zip(before, trainer.state(), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_a_loss_that_is_not_finite_changes_nothing():
    trainer = make_trainer(Ring(), linear_model, bucket_mb=TINY)
    before = trainer.state()
    with pytest.raises(NotFinite):
        trainer.step(StepInput(0, [part(0, BATCH, shift=float("nan"))], 0, BATCH))
    for expected, got in zip(before, trainer.state(), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("kind", [LookupError, ValueError])
def test_what_is_raised_while_votes_are_collected_arrives_as_it_is(kind):
    trainer = make_trainer(Ring(), bucket_mb=TINY)
    before = trainer.state()

    def meet(own: Any) -> Votes:
        raise kind("no votes today")

    with pytest.raises(kind, match="no votes today"):
        trainer.update(StepInput(0, [part(0, BATCH)], 0, BATCH), meet)
    for expected, got in zip(before, trainer.state(), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_a_model_that_fails_as_a_ring_does_is_not_taken_for_a_broken_ring():
    trainer = make_trainer(Ring(), model_that_fails, bucket_mb=TINY)
    with pytest.raises(tf.errors.OpError, match="a record that the model cannot take"):
        trainer.step(StepInput(0, [part(0, BATCH, shift=-10.0)], 0, BATCH))


@pytest.mark.parametrize("bucket_mb", [0.0, TINY])
def test_compressed_gradients_are_rounded_and_nothing_else_is(bucket_mb):
    ring, fp16 = Ring(), GradientCompression.FP16
    exact = make_trainer(Ring(), bucket_mb=bucket_mb, optimizer=keras.optimizers.SGD)
    rounded = make_trainer(ring, bucket_mb=bucket_mb, compression=fp16, optimizer=keras.optimizers.SGD)
    step = StepInput(0, [part(0, BATCH)], 0, BATCH)
    before = [v.numpy() for v in exact.model.trainable_variables]
    ring.began.clear()
    a, b = exact.step(step), rounded.step(step)
    assert ring.began == ([1, 0] if not bucket_mb else [*range(1, len(before) + 1), 0])
    assert b.loss == a.loss, "the control vector is not rounded"
    for one, other in zip(
        exact.model.non_trainable_variables, rounded.model.non_trainable_variables, strict=True
    ):
        np.testing.assert_array_equal(one.numpy(), other.numpy(), "nor are batch statistics")
    moved = [v.numpy() - old for v, old in zip(exact.model.trainable_variables, before, strict=True)]
    also = [v.numpy() - old for v, old in zip(rounded.model.trainable_variables, before, strict=True)]
    assert any(not np.array_equal(x, y) for x, y in zip(moved, also, strict=True))
    for x, y in zip(moved, also, strict=True):
        np.testing.assert_allclose(y, x, rtol=2e-3, atol=1e-7)


def test_compressed_gradients_that_are_too_large_are_not_applied():
    trainer = make_trainer(Ring(), linear_model, compression=GradientCompression.FP16)
    before = trainer.state()
    with pytest.raises(NotFinite):
        trainer.step(StepInput(0, [part(0, BATCH, shift=1e6)], 0, BATCH))
    for expected, got in zip(before, trainer.state(), strict=True):
        np.testing.assert_array_equal(got, expected)
