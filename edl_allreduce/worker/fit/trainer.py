"""A compiled model as the engine's trainer: its own loss, optimizer, metrics and weights of records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edl_allreduce.errors import ModelError
from edl_allreduce.spec import GradientCompression, OnNan
from edl_allreduce.worker.fit.memory import Memory
from edl_allreduce.worker.keras import rules
from edl_allreduce.worker.keras.private import build_compiled, compiled_loss, loss_counters
from edl_allreduce.worker.keras.trainer import Trainer
from edl_allreduce.worker.keras.zoo import ModelDefinition
from edl_allreduce.worker.loop.steps import MicroBatch
from edl_allreduce.worker.ring.base import Ring

CALLER = Path("elastic.fit")
"""Where messages about the model say that it is from."""


class CompiledTrainer(Trainer):
    """One update as `compile` wants it. Metrics and what callbacks remember are part of the state."""

    def __init__(
        self,
        model: Any,
        ring: Ring,
        memory: Memory,
        *,
        on_nan: OnNan,
        bucket_mb: float = 0.0,
        compression: GradientCompression = GradientCompression.NONE,
    ) -> None:
        definition = ModelDefinition(
            path=CALLER,
            model=lambda: model,
            loss=loss_of(model),
            optimizer=lambda: model.optimizer,
            feed=lambda dataset, mode, metadata: dataset,
        )
        super().__init__(definition, ring, None, on_nan=on_nan, bucket_mb=bucket_mb, compression=compression)
        self._memory = memory
        self._concluded = False
        self.at_the_end: Callable[[], None] = lambda: None
        """Called once, when the model is what it will be."""

    def build(self, sample: MicroBatch) -> None:
        """As the model file's trainer, with everything that `compile` left for later."""
        y, weights = sample.labels.get("y"), sample.labels.get("weights")
        build_compiled(self.model, (sample.features, y, weights))
        self.model.reset_metrics()
        self._counted = _unique(self.model.metrics_variables)
        for metric in self.model.metrics:
            if any(np.any(v.numpy()) for v in metric.variables):
                raise ModelError(
                    f"{CALLER}: the metric {metric.name} ({type(metric).__name__}) does not begin at zero, "
                    "so parts of it cannot be added up; leave it out of compile()"
                )
        counters = [v for metric in loss_counters(self.model) for v in metric.variables]
        self._of_losses = {id(v) for v in counters}
        super().build(sample)
        self.model.reset_metrics()

    def conclude(self) -> None:
        """Make the result of the state, in the order of `model.fit`: averaged weights, then callbacks."""
        if not self._concluded:
            self._concluded = True
            self.optimizer.finalize_variable_values(self.model.trainable_variables)
            self.at_the_end()

    # ------------------------------------------------------------------------------------ how it differs

    def _check_model(self) -> list[str]:
        return rules.check(self.model, str(CALLER), uses_compile=True)

    def _count(self, features: Any, labels: Any, outputs: Any) -> None:
        self.model.compute_metrics(features, labels.get("y"), outputs, sample_weight=labels.get("weights"))

    def _counted_part(self, variable: Any, value: Any, share: Any) -> Any:
        """The loss of an output counts one for each step, however many parts its batch has."""
        part = super()._counted_part(variable, value, share)
        return part * tf.cast(share, part.dtype) if id(variable) in self._of_losses else part

    def _seed_of(self, place: int) -> Any:
        """Each worker made its own model: what counts are the seeds of the one that all took over."""
        return tf.cast(self._facts.seeds[place].value, tf.uint32)

    # -------------------------------------------------------------------------------------------- state

    def _variables(self) -> list[Any]:
        return _unique([*super()._variables(), *self._facts.seeds])

    def names(self) -> tuple[list[str], list[str]]:
        model = [v.path for v in self.model.variables]
        others = [v.path for v in self._variables()[len(model) :]]
        return model, [*others, "callbacks", *(f"best/{path}" for path in self._memory.kept_paths)]

    def state(self) -> list[np.ndarray[Any, Any]]:
        return [*super().state(), *self._memory.arrays()]

    def restore(self, arrays: Sequence[np.ndarray[Any, Any]]) -> None:
        count = len(self._variables())
        super().restore(arrays[:count])
        self._memory.restore(arrays[count:])
        self.model.stop_training = False  # what callbacks wanted was of another state, or is remembered


def loss_of(model: Any) -> Callable[..., Any]:
    """The loss that `compile` was given, without what layers add."""
    given = compiled_loss(model)

    def loss(labels: Any, outputs: Any) -> Any:
        found = None if given is None else given(labels.get("y"), outputs, labels.get("weights"))
        return tf.zeros([]) if found is None else found

    made: Callable[..., Any] = tf.autograph.experimental.do_not_convert(loss)
    return made


def _unique(variables: Sequence[Any]) -> list[Any]:
    return list({id(v): v for v in variables}.values())


def plain(results: dict[str, Any]) -> dict[str, float]:
    """Results of metrics as numbers; one that gives several has a name for each."""
    found: dict[str, float] = {}
    for name, value in results.items():
        values = np.asarray(keras.ops.convert_to_numpy(value), np.float64).reshape(-1)
        if values.size == 1:
            found[name] = float(values[0])
        else:
            found |= {f"{name}_{place}": float(each) for place, each in enumerate(values)}
    return found
