"""Exact metrics over a whole data set, whoever works on which part of it.

The data is cut into chunks of fixed size, and what each chunk contributes is a vector of sums: the state of
Keras metrics, and totals for metric functions and the loss. Vectors are added in double precision, so that
the result is the same for any number of workers and any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edl_allreduce.core import protocol
from edl_allreduce.data import RecordSource
from edl_allreduce.errors import DataError, ModelError
from edl_allreduce.worker.keras import rules as keras_rules
from edl_allreduce.worker.keras.pipeline import Parser
from edl_allreduce.worker.keras.private import converted
from edl_allreduce.worker.keras.zoo import Mode, ModelDefinition
from edl_allreduce.worker.loop.steps import MicroBatch, Vector
from edl_allreduce.worker.records import read_records, tell_left_out

LOSS = "loss"


@dataclass(frozen=True)
class _Measure:
    """One metric of one output."""

    name: str
    output: str
    """Empty for a model with a single output."""
    metric: Any
    """A Keras metric, or a function(labels, predictions)."""

    @property
    def is_keras(self) -> bool:
        return isinstance(self.metric, keras.metrics.Metric)

    def select(self, labels: Any, outputs: Any) -> tuple[Any, Any]:
        if not self.output:
            return labels, outputs
        of_output = labels.get(self.output, labels) if isinstance(labels, Mapping) else labels
        return of_output, outputs[self.output]


class Evaluator:
    """A model's metrics on one data set."""

    def __init__(
        self,
        definition: ModelDefinition,
        model: Any,
        source: RecordSource,
        *,
        chunk: int,
        bad_records_allowed: int = 0,
        send: Callable[[protocol.BadRecords], None] = lambda message: None,
    ) -> None:
        self._definition = definition
        self._loss = converted(definition.loss)
        self._model = model
        self._source = source
        self._chunk = chunk
        self._allowed = bad_records_allowed
        self._send = send
        self._parser = Parser(definition.feed, Mode.EVALUATION, source.metadata)
        self._measures = _measures(definition)
        self._sizes: list[int] = []
        first = self._read(0)
        if first is None:
            raise DataError("the first records of the validation data cannot be read; check the data")
        self._prepare(first)

    @property
    def chunks(self) -> int:
        return -(-len(self._source) // self._chunk)

    @property
    def records(self) -> int:
        return len(self._source)

    def zero(self) -> Vector:
        """What nothing contributes."""
        return np.zeros(sum(self._sizes) + 2, np.float64)

    def measure(self, chunks: Iterable[int], between: Callable[[], None] = lambda: None) -> Vector:
        """The sums of these chunks; `between` is called after each."""
        total = self.zero()
        for batch in self._ahead(iter(chunks)):
            if batch is not None:
                total += self._sums(batch.features, batch.labels, batch.records).numpy()
            between()
        return total

    def conclude(self, total: Vector) -> dict[str, float]:
        """The metrics from the sum of all vectors."""
        found: dict[str, float] = {}
        count = total[-1]
        if count == 0:
            raise DataError("no record of the validation data could be read; check the data")
        at = 0
        for measure, size in zip(self._measures, self._sizes, strict=True):
            part = total[at : at + size]
            at += size
            if measure.is_keras:
                found.update(_keras_result(measure, part))
            else:
                found[measure.name] = float(part[0] / count)
        found.setdefault(LOSS, float(total[-2] / count))
        return found

    # ---------------------------------------------------------------------------------------- inside

    def _prepare(self, sample: MicroBatch) -> None:
        """Make the metrics' variables and trace, so that nothing slow is left for later."""
        outputs = keras_rules.call(self._model, sample.features, training=False)
        for measure in self._measures:
            labels, predictions = measure.select(sample.labels, outputs)
            if measure.is_keras:
                measure.metric.update_state(labels, predictions)
                measure.metric.reset_state()
                if any(np.any(v.numpy()) for v in measure.metric.variables):
                    raise ModelError(
                        f"{self._definition.path}: the metric {measure.name} "
                        f"({type(measure.metric).__name__}) does not begin at zero, so parts of it cannot be "
                        "added up; give a function(labels, predictions) instead"
                    )
                self._sizes.append(sum(int(np.prod(v.shape)) for v in measure.metric.variables))
            else:
                self._sizes.append(1)

        def free_batch(tensor: Any) -> Any:
            return tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)

        features, labels = tf.nest.map_structure(free_batch, (sample.features, sample.labels))
        self._sums = tf.function(
            self._sums_graph,
            input_signature=[features, labels, tf.TensorSpec([], tf.float64)],
            autograph=False,
        )
        self._sums(sample.features, sample.labels, float(sample.records))

    def _sums_graph(self, features: Any, labels: Any, records: Any) -> Any:
        outputs = keras_rules.call(self._model, features, training=False)
        parts = []
        for measure in self._measures:
            expected, predicted = measure.select(labels, outputs)
            if measure.is_keras:
                zeros = [tf.zeros(v.shape, v.dtype) for v in measure.metric.variables]
                state = measure.metric.stateless_update_state(zeros, expected, predicted)
                parts += [tf.reshape(tf.cast(v, tf.float64), [-1]) for v in state]
            else:
                value = tf.cast(measure.metric(expected, predicted), tf.float64)
                parts.append(tf.reshape(tf.reduce_mean(value) * records, [1]))
        loss = keras_rules.evaluation_loss(self._loss, labels, outputs, self._model.losses)
        return tf.concat([*parts, [loss * records, records]], 0)

    def _ahead(self, chunks: Iterator[int]) -> Iterator[MicroBatch | None]:
        """Read the next chunk while the model works on this one."""
        with ThreadPoolExecutor(1, "validation data") as reader:
            coming: Future[MicroBatch | None] | None = None
            for number in chunks:
                following = reader.submit(self._read, number)
                if coming is not None:
                    yield coming.result()
                coming = following
            if coming is not None:
                yield coming.result()

    def _read(self, number: int) -> MicroBatch | None:
        indices = range(number * self._chunk, min((number + 1) * self._chunk, len(self._source)))
        read = read_records(self._source, indices, bad_allowed=self._allowed)
        tell_left_out(read, of="evaluation", data="validation data", send=self._send)
        if read.count == 0:
            return None
        return MicroBatch(*self._parser(read.records, read.count), read.count)


def _measures(definition: ModelDefinition) -> list[_Measure]:
    """What eval_metrics_fn gives, in one flat list."""
    given = definition.eval_metrics() if definition.eval_metrics is not None else {}
    expected = "{name: function(labels, predictions) or Keras metric}, or {output: {…}}"
    if not isinstance(given, Mapping):
        raise ModelError(
            f"{definition.path}: eval_metrics_fn() must return {expected}, got {type(given).__name__}"
        )
    found: list[_Measure] = []
    for name, value in given.items():
        inner = value.items() if isinstance(value, Mapping) else [("", value)]
        for metric_name, metric in inner:
            full = f"{name}_{metric_name}" if metric_name else str(name)
            is_keras = isinstance(metric, keras.metrics.Metric)
            if not (callable(metric) or is_keras):
                raise ModelError(
                    f"{definition.path}: eval_metrics_fn() gives {full}={metric!r}; expected {expected}"
                )
            counted = metric if is_keras else converted(metric)
            found.append(_Measure(full, str(name) if metric_name else "", counted))
    return found


def _keras_result(measure: _Measure, state: Vector) -> dict[str, float]:
    at = 0
    for variable in measure.metric.variables:
        size = int(np.prod(variable.shape))
        variable.assign(tf.cast(tf.reshape(state[at : at + size], variable.shape), variable.dtype))
        at += size
    result = measure.metric.result()
    if isinstance(result, Mapping):
        return {f"{measure.name}_{key}": float(value) for key, value in result.items()}
    values = np.asarray(result, np.float64).reshape(-1)
    if values.size == 1:
        return {measure.name: float(values[0])}
    return {f"{measure.name}_{place}": float(value) for place, value in enumerate(values)}
