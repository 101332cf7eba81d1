"""Sums of whole numbers train as well as sums of floats: the same digits, one step and some epochs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow

BATCH, VIRTUAL = 96, 12


def test_weights_and_accuracy_are_those_of_the_default_mode():
    import keras
    import tensorflow as tf
    from sklearn.datasets import load_digits

    from edl_allreduce.core.schedule import Span, share
    from edl_allreduce.worker.keras.reproducible import ReproducibleTrainer
    from edl_allreduce.worker.keras.trainer import Trainer
    from edl_allreduce.worker.keras.zoo import ModelDefinition
    from edl_allreduce.worker.loop.steps import MicroBatch, StepInput
    from edl_allreduce.worker.ring.solo import SoloRing

    x, y = load_digits(return_X_y=True)
    x, y = (x / 16).astype(np.float32), y.astype(np.int64)

    def parts(step: int) -> list[MicroBatch]:
        start = step * BATCH % 1440
        spans = [share(Span(0, start, start + BATCH), v, VIRTUAL) for v in range(VIRTUAL)]
        return [
            MicroBatch(tf.constant(x[s.start : s.stop]), tf.constant(y[s.start : s.stop]), len(s), v)
            for v, s in enumerate(spans)
        ]

    def model():
        layers = [keras.layers.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
        return keras.Sequential(layers)

    def loss(labels, predictions):
        return keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)

    definition = ModelDefinition(
        path=Path("test.py"),
        model=model,
        loss=loss,
        optimizer=lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        feed=lambda dataset, mode, metadata: dataset,
    )
    floats = Trainer(definition, SoloRing(), seed=1)
    whole = ReproducibleTrainer(definition, SoloRing(), seed=1, virtual_ranks=VIRTUAL)
    accuracies = {}
    for trainer in (floats, whole):
        trainer.build(parts(0)[0])
        trainer.step(StepInput(0, parts(0), 0, BATCH))
    for one, other in zip(floats.model.weights, whole.model.weights, strict=True):
        np.testing.assert_allclose(other.numpy(), one.numpy(), rtol=0, atol=1e-7)
    for trainer in (floats, whole):
        for step in range(1, 60):
            trainer.step(StepInput(step, parts(step), 0, BATCH))
        predicted = trainer.model(x[1440:], training=False).numpy().argmax(axis=1)
        accuracies[type(trainer)] = float((predicted == y[1440:]).mean())
    assert accuracies[Trainer] > 0.85
    assert abs(accuracies[Trainer] - accuracies[ReproducibleTrainer]) < 0.01
    assert whole.repeated < 10, "few steps are added twice"
