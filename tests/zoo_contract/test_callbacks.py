"""Callbacks that decide the same on every rank, also on one that came later."""

from __future__ import annotations

import keras
import pytest

from edl_allreduce.errors import ModelError
from edl_allreduce.worker.callbacks import (
    Callbacks,
    LearningRateScheduler,
    MaxStepsStopping,
    SavedModelExporter,
)
from edl_allreduce.worker.journal import Journal, decode, encode


class Model:
    """As much of a model as callbacks touch."""


def attached(*callbacks) -> tuple[Callbacks, Model, object]:
    model, optimizer = Model(), keras.optimizers.SGD(1.0)
    found = Callbacks(list(callbacks), "zoo/model.py")
    found.attach(model, optimizer, {})
    return found, model, optimizer


def test_the_learning_rate_follows_the_number_of_steps():
    callbacks, _, optimizer = attached(LearningRateScheduler(lambda batch: 0.5 if batch < 3 else 0.25))
    rates = []
    for step in range(5):
        callbacks.before_step(step, None)
        rates.append(float(optimizer.learning_rate))
    assert rates == [0.5, 0.5, 0.5, 0.25, 0.25]


def test_kerass_own_scheduler_works_by_epoch():
    callbacks, _, optimizer = attached(keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2))
    callbacks.before_step(0, 0)
    callbacks.before_step(1, None)
    callbacks.before_step(2, 1)
    assert float(optimizer.learning_rate) == 0.25


def test_the_least_maximum_of_steps_counts():
    assert Callbacks([MaxStepsStopping(9), MaxStepsStopping(5), SavedModelExporter()]).max_step == 5
    assert Callbacks([]).max_step == 0


def test_a_callback_may_ask_to_stop():
    class AfterTwo(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 1 and logs["loss"] == 0.5

    callbacks, _, _ = attached(AfterTwo())
    callbacks.after_step(0, 0.5)
    assert not callbacks.wants_stop
    callbacks.after_step(1, 0.5)
    assert callbacks.wants_stop


def evaluate(stopper, values, *, newcomer_each_time=False, name="loss"):
    """The evaluation at which it stopped, or None."""
    journal = Journal()
    callbacks = Callbacks([stopper()])
    for number, value in enumerate(values, 1):
        if newcomer_each_time:  # knows only what travels
            callbacks = Callbacks([stopper()])
            journal = decode(encode(journal))
        journal = Journal(number, {name: value}, journal.callbacks, journal.halted)
        journal = callbacks.after_evaluation(journal)
        if journal.halted:
            return number
    return None


@pytest.mark.parametrize("newcomer", [False, True])
@pytest.mark.parametrize(
    ("options", "values", "stops"),
    [
        ({"monitor": "val_loss", "patience": 2}, [1.0, 0.5, 0.6, 0.7, 0.1], 4),
        ({"monitor": "loss", "patience": 2}, [1.0, 0.5, 0.6, 0.4, 0.5, 0.3], None),
        ({"monitor": "loss", "patience": 1, "min_delta": 0.2}, [1.0, 0.9], 2),
        ({"monitor": "loss", "patience": 1, "start_from_epoch": 2}, [1.0, 2.0, 3.0, 4.0], 4),
        ({"monitor": "loss", "patience": 2}, [1.0, None, None], 3),
        ({"monitor": "loss", "patience": 1, "mode": "max"}, [1.0, 2.0, 1.5], 3),
    ],
)
def test_early_stopping_counts_evaluations(options, values, stops, newcomer):
    def make():
        return keras.callbacks.EarlyStopping(**options)

    assert evaluate(make, values, newcomer_each_time=newcomer) == stops


def test_larger_is_better_for_accuracy():
    def make():
        return keras.callbacks.EarlyStopping("val_accuracy", patience=1)

    assert evaluate(make, [0.1, 0.2, 0.3, 0.25], name="accuracy") == 4


def test_a_metric_that_nobody_computes_is_named():
    with pytest.raises(ModelError, match=r"EarlyStopping\(monitor='val_f1'\): the evaluation gives loss"):
        evaluate(lambda: keras.callbacks.EarlyStopping("val_f1"), [1.0])


@pytest.mark.parametrize(
    ("callback", "words"),
    [
        (
            lambda: keras.callbacks.ModelCheckpoint("x.keras"),
            "ModelCheckpoint cannot work here.*--checkpoint_steps",
        ),
        (lambda: keras.callbacks.TensorBoard(), "--tensorboard_log_dir"),
        (lambda: 3, "must return Keras callbacks, got a int"),
    ],
)
def test_callbacks_that_do_not_fit_are_refused_with_what_to_use_instead(callback, words):
    with pytest.raises(ModelError, match=words):
        Callbacks([callback()], "zoo/model.py")
