"""One optimiser update: gradients of this rank's records, one sum over the ring, one update.

The forward pass runs on values, not on the model's variables, so nothing of a step is visible before the
sum succeeded: a step is applied as a whole or not at all, batch statistics and dropout included. The three
functions are traced once and outlive every ring.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edl_allreduce.errors import ModelError
from edl_allreduce.worker.pipeline import MicroBatch
from edl_allreduce.worker.ring import BROKEN, Ring, broken
from edl_allreduce.worker.zoo import ModelDefinition

log = logging.getLogger(__name__)

SEED_STATE = "seed_generator_state"
"""Keras' name for the state of a random layer."""

SWITCH, STOP, DRAIN, WEIGHT, LOSS = range(5)
"""Slots of the control vector that rides with the gradients."""


@dataclass(frozen=True)
class StepResult:
    """What every rank knows after a step: the same on all."""

    loss: float
    switch: bool
    stop: bool
    draining: int
    """How many ranks were asked to leave."""


class Trainer:
    """The model, its optimiser, and the traced step."""

    def __init__(self, definition: ModelDefinition, ring: Ring, global_batch: int, seed: int) -> None:
        keras.utils.set_random_seed(seed)
        self._definition = definition
        self._ring = ring
        self._global_batch = global_batch
        self.model = self._made(definition.model, keras.Model)
        self.optimizer = self._made(definition.optimizer, keras.optimizers.Optimizer)
        self._trainable: list[Any] = []
        self._averaged: list[Any] = []
        self._seeds: list[Any] = []
        self._seed_values: list[np.ndarray[Any, Any]] = []

    def _made(self, make: Callable[[], Any], kind: type) -> Any:
        made = make()
        if not isinstance(made, kind):
            raise ModelError(
                f"{self._definition.path}: {getattr(make, '__name__', make)} must return a "
                f"{kind.__module__}.{kind.__name__}, got {type(made).__name__}"
            )
        return made

    def build(self, sample: MicroBatch) -> None:
        """Make all variables, trace the step and run it once, and leave the state as it was."""
        if not self.model.built:
            self.model(sample.features, training=False)
        self._trainable = list(self.model.trainable_variables)
        if not self._trainable:
            raise ModelError(f"{self._definition.path}: the model has no trainable variable")
        self.optimizer.build(self._trainable)
        frozen = self.model.non_trainable_variables
        self._seeds = [v for v in frozen if v.name == SEED_STATE]
        self._seed_values = [v.numpy() for v in self._seeds]
        self._averaged = [v for v in frozen if v.name != SEED_STATE]
        self._trace(sample)
        before = self.state()
        self.step([sample, sample], 0, 0, switch=False, stop=False)
        self.step([sample], 0, 0, switch=False, stop=False)
        self.step([], 0, 0, switch=False, stop=False)
        self.restore(before)

    def _trace(self, sample: MicroBatch) -> None:
        def free_batch(tensor: Any) -> Any:
            return tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)

        features, labels = tf.nest.map_structure(free_batch, (sample.features, sample.labels))
        sums = [tf.TensorSpec(v.shape, v.dtype) for v in self._trainable]
        sums += [tf.TensorSpec(v.shape, tf.float32) for v in self._averaged]
        scalar = tf.TensorSpec([], tf.float32)
        salt = tf.TensorSpec([2], tf.uint32)
        control = tf.TensorSpec([5], tf.float32)
        self._local = tf.function(self._local_graph, input_signature=[features, labels, scalar, salt])
        self._add = tf.function(self._add_graph, input_signature=[sums, sums])
        self._commit = tf.function(self._commit_graph, input_signature=[sums, control])
        self._nothing = [tf.zeros(s.shape, s.dtype) for s in sums]

    # ------------------------------------------------------------------------------------------- step

    def step(
        self, parts: Sequence[MicroBatch], epoch_step: int, position: int, *, switch: bool, stop: bool
    ) -> StepResult:
        """Compute and reduce; raises RingBroken when the sum did not come about."""
        sums, weight, loss = self.compute(parts, epoch_step, position)
        return self.commit(sums, weight, loss, switch=switch, stop=stop)

    def compute(self, parts: Sequence[MicroBatch], step: int, position: int) -> tuple[Any, float, Any]:
        """This rank's weighted sums. User code runs here and nowhere else."""
        sums: Any = None
        loss: Any = 0.0
        weight = 0.0
        for part in parts:
            share = part.records / self._global_batch
            weight += share
            more, part_loss = self._local(part.features, part.labels, share, _salt(step, position))
            sums = more if sums is None else self._add(sums, more)
            loss = loss + part_loss
            position += part.records
        return self._nothing if sums is None else sums, weight, loss

    def commit(
        self, sums: Any, weight: float, loss: Any, *, switch: bool, stop: bool, drain: bool = False
    ) -> StepResult:
        """Sum over the ring and apply."""
        control = tf.stack([float(switch), float(stop), float(drain), weight, tf.cast(loss, tf.float32)])
        try:
            total = self._commit(sums, control).numpy()
        except BROKEN as error:
            raise broken(error) from error
        return StepResult(
            loss=float(total[LOSS] / total[WEIGHT]) if total[WEIGHT] else float("nan"),
            switch=total[SWITCH] > 0,
            stop=total[STOP] > 0,
            draining=round(total[DRAIN]),
        )

    def _local_graph(self, features: Any, labels: Any, weight: Any, salt: Any) -> tuple[list[Any], Any]:
        log.info("the step is traced")
        salted = [tf.bitwise.bitwise_xor(tf.cast(s, tf.uint32), salt) for s in self._seed_values]
        seeds = {id(v): tf.cast(s, v.dtype) for v, s in zip(self._seeds, salted, strict=True)}
        frozen = [seeds.get(id(v), v.value) for v in self.model.non_trainable_variables]
        variables = [v.value for v in self._trainable]
        with tf.GradientTape() as tape:
            outputs, updated, extra = self.model.stateless_call(
                variables, frozen, features, training=True, return_losses=True
            )
            loss = tf.reduce_mean(tf.cast(self._definition.loss(labels, outputs), tf.float32))
            loss = (loss + tf.add_n([tf.cast(e, tf.float32) for e in extra]) if extra else loss) * weight
        gradients = tape.gradient(loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        kept = {id(v): u for v, u in zip(self.model.non_trainable_variables, updated, strict=True)}
        averaged = [tf.cast(kept[id(v)], tf.float32) * weight for v in self._averaged]
        return [tf.convert_to_tensor(g) for g in gradients] + averaged, loss

    def _add_graph(self, one: list[Any], other: list[Any]) -> list[Any]:
        return [a + b for a, b in zip(one, other, strict=True)]

    def _commit_graph(self, sums: list[Any], control: Any) -> Any:
        *reduced, total = self._ring.sum([*sums, control])
        # Bad records that were left out make the weights sum to less than one.
        scale = tf.math.divide_no_nan(1.0, total[WEIGHT])
        gradients = [g * tf.cast(scale, g.dtype) for g in reduced[: len(self._trainable)]]
        self.optimizer.apply(gradients, self._trainable)
        for variable, value in zip(self._averaged, reduced[len(self._trainable) :], strict=True):
            value = value * scale
            whole = not tf.as_dtype(variable.dtype).is_floating
            variable.assign(tf.cast(tf.round(value) if whole else value, variable.dtype))
        return total

    # ------------------------------------------------------------------------------------------ state

    def _variables(self) -> list[Any]:
        return [*self.model.variables, *self.optimizer.variables]

    def state(self) -> list[np.ndarray[Any, Any]]:
        """Everything that makes the next step what it is, as arrays."""
        return [v.numpy().copy() for v in self._variables()]

    def names(self) -> tuple[list[str], list[str]]:
        """Of the model's and of the optimizer's variables, in the order of `state`."""
        return [v.path for v in self.model.variables], [v.path for v in self.optimizer.variables]

    def restore(self, arrays: Sequence[np.ndarray[Any, Any]]) -> None:
        for variable, array in zip(self._variables(), arrays, strict=True):
            variable.assign(array)

    def restore_model(self, arrays: Sequence[np.ndarray[Any, Any]]) -> None:
        """Only the model; the optimizer begins anew."""
        for variable, array in zip(self.model.variables, arrays, strict=True):
            variable.assign(array)


def _salt(step: int, position: int) -> Any:
    """Random layers draw anew in each step and micro-batch, and the same again when a step is repeated."""
    text = f"{step}/{position}".encode()
    return tf.constant([zlib.crc32(text), zlib.adler32(text)], tf.uint32)
