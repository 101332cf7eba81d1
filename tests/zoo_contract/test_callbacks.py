"""Callbacks that decide the same on every rank, also on one that came later."""

from __future__ import annotations

import math

import keras
import msgspec
import pytest

from edl_allreduce.errors import ModelError
from edl_allreduce.worker.keras.callbacks import (
    Callbacks,
    LearningRateScheduler,
    MaxStepsStopping,
    SavedModelExporter,
)
from edl_allreduce.worker.loop.journal import Journal, decode, encode

pytestmark = pytest.mark.tensorflow


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
        callbacks.before_step(step, 0, first=step == 0, journal=Journal())
        rates.append(float(optimizer.learning_rate))
    assert rates == [0.5, 0.5, 0.5, 0.25, 0.25]


def test_kerass_own_scheduler_works_by_epoch():
    callbacks, _, optimizer = attached(keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2))
    for step, epoch in enumerate((0, 0, 1)):
        callbacks.before_step(step, epoch, first=step in (0, 2), journal=Journal())
    assert float(optimizer.learning_rate) == 0.25


class Diary(keras.callbacks.Callback):
    """Writes down what it is told."""

    def __init__(self):
        super().__init__()
        self.told = []

    def on_epoch_begin(self, epoch, logs=None):
        self.told.append(f"begin {epoch}")

    def on_epoch_end(self, epoch, logs=None):
        self.told.append(f"end {epoch} {logs}")


def test_an_epoch_ends_with_its_mean_loss_and_what_was_evaluated():
    diary = Diary()
    callbacks, _, _ = attached(diary)
    journal = Journal()
    for step, loss in enumerate((4.0, 1.0)):
        callbacks.before_step(step, 0, first=step == 0, journal=journal)
        journal = journal.count(0, loss, records=10 if step == 0 else 5)
    journal = msgspec.structs.replace(journal, evaluated=2, metrics={"accuracy": 0.5})
    for _ in range(2):  # the first step of the next epoch is repeated after a re-form
        callbacks.before_step(2, 1, first=True, journal=journal)
    journal = journal.count(1, 2.0, records=15)
    callbacks.end(3, journal, epoch_is_over=True)
    assert diary.told == [
        "begin 0",
        "end 0 {'loss': 3.0, 'val_accuracy': 0.5}",
        "begin 1",
        "end 1 {'loss': 2.0}",
    ]


def test_the_mean_loss_of_an_epoch_travels_and_is_no_number_once_a_loss_was_none():
    journal = Journal().count(0, 4.0, 10).count(0, 1.0, 5)
    assert decode(encode(journal)).mean_loss == 3.0
    broken = decode(encode(journal.count(0, float("nan"), 5)))
    assert math.isnan(broken.mean_loss) and math.isnan(broken.count(0, 1.0, 5).mean_loss)
    assert broken.count(1, 1.0, 5).mean_loss == 1.0


def test_a_callback_for_the_batches_of_an_evaluation_is_refused():
    class PerBatch(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            pass

    with pytest.raises(ModelError, match=r"PerBatch has on_test_batch_end\(\), which would never be called"):
        Callbacks([PerBatch()], "zoo/model.py")


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
