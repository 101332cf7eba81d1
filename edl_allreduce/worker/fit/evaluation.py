"""The end of an epoch: the compiled metrics over the whole validation data, shared by all workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edl_allreduce.worker.fit.callbacks import FitCallbacks
from edl_allreduce.worker.fit.data import Labelled, Source
from edl_allreduce.worker.fit.trainer import CompiledTrainer, loss_of, plain
from edl_allreduce.worker.keras import rules
from edl_allreduce.worker.keras.private import loss_counters
from edl_allreduce.worker.loop.steps import Vector


class EpochEnd:
    """What is measured after each epoch. Without validation data only the training's own metrics are told."""

    def __init__(
        self,
        trainer: CompiledTrainer,
        callbacks: FitCallbacks,
        source: Source | None,
        *,
        chunk: int,
        every: int = 1,
    ) -> None:
        self._model = trainer.model
        self._loss = loss_of(self._model)
        self._callbacks = callbacks
        self._source = source
        self._chunk = chunk
        self._every = every
        self._parser = Labelled()
        self._variables = list({id(v): v for v in self._model.metrics_variables}.values())
        callbacks.validates = lambda: self._due
        if source is not None:
            self._trace(*self._read(0))

    @property
    def _due(self) -> bool:
        return self._source is not None and (self._callbacks.journal().epoch + 1) % self._every == 0

    @property
    def chunks(self) -> int:
        return -(-self.records // self._chunk)

    @property
    def records(self) -> int:
        return len(self._source) if self._source is not None and self._due else 0

    def measure(self, chunks: Iterable[int], between: Callable[[], None] = lambda: None) -> Vector:
        """The sums of these chunks; `between` is called after each."""
        total = np.zeros(sum(int(np.prod(v.shape)) for v in self._variables) + 2, np.float64)
        for number in chunks:
            total += self._sums(*self._read(number)).numpy()
            between()
        return total

    def conclude(self, total: Vector) -> dict[str, float]:
        """What the epoch gave: loss and metrics of the training, and with val_ those of the validation."""
        logs = self._callbacks.training_logs()
        if total[-1]:
            found = self._results(total) | {"loss": float(total[-2] / total[-1])}
            logs |= {f"val_{name}": value for name, value in found.items()}
        return logs

    # ---------------------------------------------------------------------------------------- inside

    def _read(self, number: int) -> tuple[Any, dict[str, Any]]:
        assert self._source is not None
        indices = range(number * self._chunk, min((number + 1) * self._chunk, len(self._source)))
        return self._parser(self._source.read(indices), len(indices))

    def _trace(self, features: Any, labels: dict[str, Any]) -> None:
        signature = tf.nest.map_structure(
            lambda t: tf.TensorSpec([None, *t.shape[1:]], t.dtype), (features, labels)
        )
        self._sums = tf.function(self._graph, input_signature=list(signature), autograph=False)
        self._sums(features, labels)

    def _graph(self, features: Any, labels: dict[str, Any]) -> Any:
        records = tf.cast(tf.shape(tf.nest.flatten(features)[0])[0], tf.float64)
        values = [(v, v.value) for v in self._model.variables]
        values += [(v, tf.zeros(v.shape, v.dtype)) for v in self._variables]
        with keras.StatelessScope(state_mapping=values, collect_losses=True) as scope:
            outputs = rules.call(self._model, features, training=False)
            added = self._model.losses
            loss = rules.evaluation_loss(self._loss, labels, outputs, added)
            self._model.compute_metrics(
                features, labels.get("y"), outputs, sample_weight=labels.get("weights")
            )
        of_losses = {id(v) for metric in loss_counters(self._model) for v in metric.variables}
        parts = []
        for variable in self._variables:
            part = tf.reshape(tf.cast(scope.get_current_value(variable), tf.float64), [-1])
            # Keras counts one for each batch here; the parts of a batch count by their records.
            parts.append(part * records if id(variable) in of_losses else part)
        return tf.concat([*parts, [loss * records, records]], 0)

    def _results(self, total: Vector) -> dict[str, float]:
        """What the metrics say of these sums; their variables hold those of the training."""
        mapping, at = [], 0
        for variable in self._variables:
            size = int(np.prod(variable.shape))
            value = tf.cast(tf.reshape(total[at : at + size], variable.shape), variable.dtype)
            mapping.append((variable, value))
            at += size
        with keras.StatelessScope(state_mapping=mapping):
            return plain(self._model.get_metrics_result())
