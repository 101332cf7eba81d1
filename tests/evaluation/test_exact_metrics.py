"""The same numbers as over the whole data at once, however the work was split."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from edl_allreduce.core.protocol import BadRecords
from edl_allreduce.core.schedule import Span, share
from edl_allreduce.data import Metadata
from edl_allreduce.errors import BadRecord, DataError, ModelError
from edl_allreduce.worker.keras.evaluation import Evaluator
from edl_allreduce.worker.keras.zoo import ModelDefinition

pytestmark = pytest.mark.tensorflow

RECORDS = 331
CHUNK = 16


class Columns:
    """A record source in memory; `bad` records cannot be read."""

    fingerprint = "f" * 16
    metadata = Metadata("numpy")

    def __init__(self, bad: tuple[int, ...] = ()) -> None:
        random = np.random.default_rng(1)
        self.x = random.normal(size=(RECORDS, 5)).astype("float32")
        self.y = random.integers(0, 3, RECORDS)
        self.bad = bad

    def __len__(self) -> int:
        return RECORDS

    def read(self, indices):
        for index in indices:
            if index in self.bad:
                raise BadRecord("torn", index=int(index), path="x.npy")
        wanted = np.asarray(indices)
        return {"x": self.x[wanted], "y": self.y[wanted]}

    def describe(self, index: int) -> str:
        return str(index)

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(3)
    inputs = keras.Input((5,))
    hidden = keras.layers.Dropout(0.5)(keras.layers.Dense(8, "tanh")(inputs))
    return keras.Model(inputs, keras.layers.Dense(3)(hidden))


def loss(labels, predictions):
    if isinstance(predictions, dict):
        predictions = predictions["b"]
    return keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)


def metrics():
    return {
        "accuracy": lambda labels, outputs: tf.equal(tf.argmax(outputs, 1), tf.cast(labels, tf.int64)),
        "mean_logit": lambda labels, outputs: tf.reduce_mean(outputs),
        "keras_accuracy": keras.metrics.SparseCategoricalAccuracy(),
        "mean": keras.metrics.MeanMetricWrapper(loss),
        "auc": WrapAuc(),
    }


class WrapAuc(keras.metrics.AUC):
    """Class 0 against the others, from logits."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(y_true == 0, keras.ops.softmax(y_pred)[:, 0], sample_weight)


def evaluator(model, given=metrics, source=None, **options):
    definition = ModelDefinition(
        path=Path("zoo/model.py"),
        model=lambda: model,
        loss=loss,
        optimizer=lambda: None,
        feed=lambda dataset, mode, metadata: dataset.map(lambda r: (r["x"], r["y"])),
        eval_metrics=given,
    )
    return Evaluator(definition, model, source or Columns(), chunk=CHUNK, **options)


@pytest.fixture(scope="module")
def whole(model):
    judge = evaluator(model)
    return judge, judge.conclude(judge.measure(range(judge.chunks)))


def test_metrics_are_those_of_keras_over_all_records(model, whole):
    data = Columns()
    outputs = model(data.x, training=False)
    _, found = whole
    expected = keras.metrics.SparseCategoricalAccuracy()
    expected.update_state(data.y, outputs)
    auc = WrapAuc()
    auc.update_state(data.y, outputs)
    assert found["keras_accuracy"] == pytest.approx(float(expected.result()), abs=1e-7)
    assert found["accuracy"] == pytest.approx(found["keras_accuracy"], abs=1e-7)
    assert found["auc"] == pytest.approx(float(auc.result()), abs=1e-6)
    assert found["loss"] == pytest.approx(float(np.mean(loss(data.y, outputs))), abs=1e-6)
    assert found["mean"] == pytest.approx(found["loss"], abs=1e-6)
    assert found["mean_logit"] == pytest.approx(float(np.mean(outputs)), abs=1e-6), "weighted by records"


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 30])
def test_any_number_of_workers_gives_the_same_bits(whole, workers):
    judge, expected = whole
    total = judge.zero()
    for rank in reversed(range(workers)):
        part = share(Span(0, 0, judge.chunks), rank, workers)
        total += judge.measure(range(part.start, part.stop))
    assert judge.conclude(total) == pytest.approx(expected, rel=1e-12)
    assert total[-1] == RECORDS


def test_outputs_with_metrics_of_their_own():
    inputs = keras.Input((5,))
    outputs = {"a": keras.layers.Dense(1)(inputs), "b": keras.layers.Dense(3)(inputs)}
    two = keras.Model(inputs, outputs)
    judge = evaluator(
        two,
        lambda: {
            "a": {"mean": lambda labels, outputs: outputs},
            "b": {"accuracy": keras.metrics.SparseCategoricalAccuracy()},
        },
    )
    assert set(judge.conclude(judge.measure(range(judge.chunks)))) == {"a_mean", "b_accuracy", "loss"}


def test_a_model_without_metrics_has_a_loss(model):
    judge = evaluator(model, None)
    assert set(judge.conclude(judge.measure([0]))) == {"loss"}


def test_bad_records_are_left_out_only_if_allowed(model, caplog):
    told: list[BadRecords] = []
    judge = evaluator(model, source=Columns(bad=(20, 21)), bad_records_allowed=5, send=told.append)
    total = judge.measure(range(judge.chunks))
    assert total[-1] == RECORDS - 2
    assert caplog.text.count("left out of the evaluation") == 2
    assert [(m.data, sorted(m.records)) for m in told] == [("validation data", [20, 21])]
    with pytest.raises(DataError, match="--max_bad_records=N"):
        evaluator(model, source=Columns(bad=(20,))).measure(range(3))


def test_nothing_to_conclude_from_is_an_error(whole):
    judge, _ = whole
    with pytest.raises(DataError, match="no record"):
        judge.conclude(judge.zero())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda: [1], "eval_metrics_fn\\(\\) must return .* got list"),
        (lambda: {"accuracy": "acc"}, "gives accuracy='acc'"),
        (lambda: {"odd": OddMetric()}, "odd .*does not begin at zero"),
    ],
)
def test_what_does_not_fit_is_named(model, given, words):
    with pytest.raises(ModelError, match=words):
        evaluator(model, given)


class OddMetric(keras.metrics.Mean):
    def __init__(self):
        super().__init__()
        self.largest = self.add_variable((), initializer="ones", name="largest")

    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(y_pred)

    def reset_state(self):
        self.largest.assign(1.0)
