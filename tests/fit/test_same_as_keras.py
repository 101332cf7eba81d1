"""`elastic.fit` alone gives the weights and the history of `model.fit`, however the model was compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from edl_allreduce import elastic
from edl_allreduce.worker.fit import call
from edl_allreduce.worker.keras import buckets

pytestmark = pytest.mark.tensorflow

CHANCE = np.random.default_rng(0)
X = CHANCE.normal(size=(70, 6)).astype("float32")
Y = (X.sum(1) > 0).astype("int64")
WEIGHTS = CHANCE.uniform(0.2, 2, size=70)


def sequential() -> Any:
    """Dropout, batch normalisation and a regulariser: everything that a step changes or draws."""
    keras.utils.set_random_seed(3)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, "relu", kernel_regularizer="l2"),
            layers.Dropout(0.3),
            layers.BatchNormalization(),
            layers.Dense(2),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        keras.optimizers.Adam(0.02),
        loss,
        metrics=["accuracy"],
        weighted_metrics=["accuracy"],
        jit_compile=False,
    )
    return model


def two_outputs() -> Any:
    keras.utils.set_random_seed(3)
    x = keras.Input((6,))
    hidden = keras.layers.Dense(8, "relu")(x)
    outputs = {"a": keras.layers.Dense(1, name="a")(hidden), "b": keras.layers.Dense(2, name="b")(hidden)}
    model = keras.Model(x, outputs)
    losses = {"a": "mse", "b": keras.losses.SparseCategoricalCrossentropy(from_logits=True)}
    model.compile(
        "sgd", losses, loss_weights={"a": 0.5, "b": 1.0}, metrics={"b": ["accuracy"]}, jit_compile=False
    )
    return model


class Items(keras.utils.PyDataset):  # type: ignore[misc]
    """Batches of 16, the last one shorter."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, number: int) -> Any:
        rows = slice(number * 16, (number + 1) * 16)
        return X[rows], Y[rows], WEIGHTS[rows]


class Records:
    """One record at a time."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, number: int) -> Any:
        return X[number], Y[number], WEIGHTS[number]


def check_same(make: Callable[[], Any], theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    expected, model = make(), make()
    fitted = expected.fit(**theirs, epochs=3, verbose=0, shuffle=False)
    history = elastic.fit(model, ours.pop("x"), **ours, epochs=3, verbose=0, shuffle=False)
    for a, b in zip(expected.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)
    assert history.epoch == fitted.epoch
    assert history.history.keys() == fitted.history.keys()
    for name, values in fitted.history.items():
        np.testing.assert_allclose(history.history[name], values, rtol=1e-3, atol=1e-4, err_msg=name)


def test_arrays_with_weights_of_records_and_a_validation() -> None:
    given = {"x": X, "y": Y, "sample_weight": WEIGHTS, "batch_size": 16, "validation_split": 0.2}
    check_same(sequential, given, dict(given))


def test_weights_of_classes() -> None:
    given = {"x": X, "y": Y, "class_weight": {0: 3.0, 1: 0.5}, "batch_size": 14}
    check_same(sequential, given, dict(given))


def test_several_outputs_have_losses_of_their_own() -> None:
    given = {"x": X[:64], "y": {"a": X[:64, 0], "b": Y[:64]}, "batch_size": 16}
    check_same(two_outputs, given, dict(given))


def test_the_items_of_a_pydataset_are_its_batches() -> None:
    check_same(sequential, {"x": Items()}, {"x": Items()})


def test_records_that_come_one_by_one() -> None:
    theirs = {"x": X, "y": Y, "sample_weight": WEIGHTS, "batch_size": 16}
    check_same(sequential, theirs, {"x": Records(), "batch_size": 16})


def test_callbacks_decide_as_in_keras_and_hear_the_same() -> None:
    def run(fit: Callable[..., Any]) -> tuple[list[str], Any]:
        heard: list[str] = []

        class Listener(keras.callbacks.Callback):  # type: ignore[misc]
            def __getattribute__(self, name: str) -> Any:
                found = super().__getattribute__(name)
                if (
                    not name.startswith("on_")
                    or "test_batch" in name
                    or name in ("on_batch_begin", "on_batch_end")
                ):
                    return found

                def told(*arguments: Any, **more: Any) -> None:
                    numbers = [a for a in arguments if isinstance(a, int)]
                    heard.append(f"{name} {numbers}")

                return told

            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                """So that it is known to be wanted."""

        stop = keras.callbacks.EarlyStopping(
            "val_loss", patience=1, min_delta=0.02, restore_best_weights=True
        )
        slower = keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=0.1)
        rate = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9)
        history = fit(callbacks=[stop, slower, rate, Listener()])
        assert len(history.epoch) < 8, "the training was stopped early"
        return heard, history

    expected, model = sequential(), sequential()
    given = {
        "batch_size": 16,
        "epochs": 8,
        "verbose": 0,
        "shuffle": False,
        "validation_data": (X[:20], Y[:20]),
    }
    theirs, fitted = run(lambda callbacks: expected.fit(X, Y, callbacks=callbacks, **given))
    ours, history = run(lambda callbacks: elastic.fit(model, X, Y, callbacks=callbacks, **given))
    assert [h for h in ours] == [h for h in theirs if "test_batch" not in h]
    assert history.history.keys() == fitted.history.keys() and history.epoch == fitted.epoch
    np.testing.assert_allclose(history.history["learning_rate"], fitted.history["learning_rate"], rtol=1e-5)
    for a, b in zip(expected.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)


def test_a_metric_whose_direction_keras_knows_is_monitored() -> None:
    """What is better is only known once the metrics are built."""
    stop = keras.callbacks.EarlyStopping("val_accuracy", patience=1, min_delta=2.0)
    given = {"batch_size": 35, "epochs": 5, "verbose": 0, "validation_data": (X[:20], Y[:20])}
    assert elastic.fit(sequential(), X, Y, callbacks=[stop], **given).epoch == [0, 1]
    assert stop.min_delta == 2.0


def test_losses_of_several_outputs_are_validated_record_by_record() -> None:
    given = {"x": X[:64], "y": {"a": X[:64, 0], "b": Y[:64]}, "batch_size": 16}
    given["validation_data"] = (X[:32], {"a": X[:32, 0], "b": Y[:32]})
    check_same(two_outputs, given, dict(given))


def test_alone_nothing_is_traced_to_begin_sums_early(monkeypatch):
    made: list[Any] = []

    class Noting(call.CompiledTrainer):
        def __init__(self, *given: Any, **settings: Any) -> None:
            super().__init__(*given, **settings)
            made.append(self)

    monkeypatch.setattr(call, "CompiledTrainer", Noting)
    monkeypatch.setattr(buckets, "SMALL_MODEL", 1)
    monkeypatch.setattr(buckets, "AUTOMATIC", 1)
    elastic.fit(sequential(), X, Y, epochs=1, verbose=0)
    (trainer,) = made
    assert len(trainer._buckets) == 1 and trainer._overlapped is None
