"""The same weights to the bit for any number of workers, in one process: real models, fake rings."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from edl_allreduce.core.health import Activity
from edl_allreduce.errors import StateDiffers
from edl_allreduce.worker.loop.orders import Progress
from tests.reproducible.conftest import same_bits

pytestmark = pytest.mark.tensorflow


class Unused(keras.layers.Layer):
    """Has a variable on which no loss depends."""

    def build(self, shape):
        self.idle = self.add_weight(shape=(4,))

    def call(self, inputs):
        return inputs


def mlp():
    return keras.Sequential(
        [
            keras.layers.Input((8, 8, 1)),
            keras.layers.Flatten(),
            Unused(),
            keras.layers.Dense(16, activation="relu", kernel_regularizer=keras.regularizers.L2(0.01)),
            keras.layers.Dense(3),
        ]
    )


def cnn():
    return keras.Sequential(
        [
            keras.layers.Input((8, 8, 1)),
            keras.layers.RandomTranslation(0.1, 0.1),
            keras.layers.Conv2D(6, 3),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.4),
            keras.layers.Dense(3),
        ]
    )


def half():
    """Whose gradients overflow at first, until the scale of the loss is low enough."""
    kind = {"dtype": "mixed_float16"}
    dense = keras.layers.Dense(16, activation="relu", **kind)
    layers = [keras.layers.Input((8, 8, 1)), keras.layers.Flatten(**kind), dense]
    return keras.Sequential([*layers, keras.layers.Dropout(0.2, **kind), keras.layers.Dense(3, **kind)])


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [
        (
            half,
            lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05), initial_scale=2.0**22),
        ),
        (mlp, lambda: keras.optimizers.SGD(0.05, momentum=0.9)),
        (cnn, lambda: keras.optimizers.Adam(0.01)),
    ],
    ids=["half-precision", "mlp-momentum", "cnn-adam"],
)
def test_any_number_of_workers_comes_to_the_same_bits(company, model, optimizer):
    made = company(model, optimizer)
    results, states = {}, {}
    for size in (1, 2, 3, 4):
        made.restore(made.beginning)
        results[size] = made.run(range(6), size)
        states[size] = made.ranks[size - 1].trainer.state()
    assert not same_bits(states[1], made.beginning), "something was trained"
    for size in (2, 3, 4):
        assert same_bits(states[size], states[1]), size
        assert {r.loss for r in results[size]} == {results[1][0].loss}
        assert len(results[size][0].computed) == size

    # Workers come and go, and the state is given on: the bits stay.
    made.restore(made.beginning)
    for steps, size in ((range(2), 3), (range(2, 3), 1), (range(3, 6), 4)):
        made.run(steps, size)
        made.restore(made.ranks[0].trainer.state())
    assert same_bits(made.ranks[0].trainer.state(), states[1])


def test_a_worker_whose_memory_rots_is_noticed_before_anything_is_applied(company):
    made = company(mlp, lambda: keras.optimizers.SGD(0.05), most=3)
    made.run(range(2), 3)
    before = made.ranks[0].trainer.state()

    def rot(rank, number):
        if rank is made.ranks[1] and number == 3:
            kernel = rank.trainer.model.layers[-1].kernel
            values = kernel.numpy()
            values.reshape(-1).view(np.int32)[5] ^= 1 << 4
            kernel.assign(values)

    errors = made.run(range(2, 5), 3, rot)
    assert all(isinstance(error, StateDiffers) for error in errors), errors
    first, odd, third = errors[0].checksums
    assert first == third != odd
    assert not same_bits(made.ranks[0].trainer.state(), before), "step 2 was made"
    assert same_bits(made.ranks[0].trainer.state(), made.ranks[2].trainer.state())
    good = made.ranks[2].trainer.state()
    made.restore(before)
    made.run(range(2, 3), 1)
    assert same_bits(made.ranks[0].trainer.state(), good), "and nothing of step 3"


def flip_lowest_bit(variable):
    values = np.array(variable.numpy())
    values.reshape(-1).view(np.int32)[0] ^= 1
    variable.assign(values)


@pytest.mark.parametrize("part", ["_velocities", "_model_variables_moving_average"])
def test_what_rots_in_the_optimizer_is_noticed_before_the_next_update(company, part):
    """No weight need show it: what is kept must be found wrong while its checkpoint can be withdrawn."""
    made = company(mlp, lambda: keras.optimizers.Adam(0.01, use_ema=True), most=3)
    made.run(range(2), 3)
    before = made.ranks[0].trainer.state()

    def rot(rank, number):
        if rank is made.ranks[1] and number == 2:
            flip_lowest_bit(getattr(rank.trainer.optimizer, part)[-1])

    errors = made.run(range(2, 6), 3, rot)
    assert all(isinstance(error, StateDiffers) for error in errors), errors
    first, odd, third = errors[0].checksums
    assert first == third != odd
    assert same_bits(made.ranks[0].trainer.state(), before), "nothing of step 2 was applied"


def test_a_step_that_is_computed_again_counts_as_user_code_again(company):
    """Whoever is stuck in it is told from those who wait for its second sum."""
    made = company(mlp, lambda: keras.optimizers.SGD(0.05), most=1)
    (rank,) = made.ranks
    progress, seen, before = Progress(Activity.REDUCING), [], rank.trainer.repeated
    rank.trainer.user_code = progress.user_code
    contribution = rank.trainer._contribution

    def noting(*arguments):
        seen.append(progress.activity)
        return contribution(*arguments)

    rank.trainer._contribution = noting
    made.run(range(1), 1)
    assert rank.trainer.repeated == before + 1, "the units of the first step are a guess"
    assert seen == [Activity.REDUCING, Activity.COMPUTING], "the first is the engine's to tell"
    assert progress.activity is Activity.REDUCING
