"""What a batch may look like: structures in any order, one size."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

from edl_allreduce.errors import ModelError
from edl_allreduce.worker.keras.trainer import Trainer
from edl_allreduce.worker.keras.zoo import ModelDefinition
from edl_allreduce.worker.loop.steps import MicroBatch, StepInput
from edl_allreduce.worker.ring.solo import SoloRing

pytestmark = pytest.mark.tensorflow

COLUMNS = {"wide": 3, "deep": 3, "a": 3}
"""Not in the order of the alphabet, and alike: a mix-up would show in the numbers only."""


def make_trainer() -> Trainer:
    def model():
        inputs = {name: keras.layers.Input((width,), name=name) for name, width in COLUMNS.items()}
        scaled = [keras.layers.Rescaling(10.0**n)(inputs[name]) for n, name in enumerate(COLUMNS)]
        return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(scaled)))

    definition = ModelDefinition(
        path=Path("test.py"),
        model=model,
        loss=lambda labels, predictions: keras.losses.mean_squared_error(labels, predictions),
        optimizer=lambda: keras.optimizers.SGD(0.1),
        feed=lambda dataset, mode, metadata: dataset,
    )
    trainer = Trainer(definition, SoloRing(), seed=1)
    trainer.build(part())
    return trainer


def part(**changed: np.ndarray) -> MicroBatch:
    import tensorflow as tf

    features = {
        name: np.full((4, width), n + 1.0, "float32") for n, (name, width) in enumerate(COLUMNS.items())
    }
    tensors = {name: tf.constant(value) for name, value in (features | changed).items()}
    return MicroBatch(tensors, tf.zeros([4, 1]), 4)


def test_named_features_reach_the_model_under_their_names():
    trainer = make_trainer()
    expected = float(np.mean(np.square(trainer.model(part().features))))
    own = trainer.compute(StepInput(0, [part()], 0, 4))
    assert own.records == own.batch == 4
    assert float(own.loss) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("other", [np.zeros((4, 5), "float32"), np.zeros((4, 3), "float64")])
def test_a_batch_of_another_size_or_type_is_named(other):
    trainer = make_trainer()
    with pytest.raises(ModelError, match="padded or cut to one size"):
        trainer.compute(StepInput(0, [part(deep=other)], 0, 4))
