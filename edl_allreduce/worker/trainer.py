"""One optimiser update: gradients of this rank's records, one sum over the ring, one update.

The forward pass runs on values, not on the model's variables, so nothing of a step is visible before the
sum succeeded: a step is applied as a whole or not at all, batch statistics and dropout included. The
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
from edl_allreduce.worker.arrays import read_arrays
from edl_allreduce.worker.autograph import converted
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
        self._loss = converted(definition.loss)
        self._ring = ring
        self._global_batch = global_batch
        self.model = self._made(definition.model, keras.Model)
        self.optimizer = self._made(definition.optimizer, keras.optimizers.Optimizer)
        self._trainable: list[Any] = []
        self._averaged: list[Any] = []
        self._seeds: list[Any] = []
        self._seed_values: list[np.ndarray[Any, Any]] = []
        self._no_salt = tf.zeros([2], tf.uint32)
        self._structure: Any = None
        self._batch: list[Any] = []
        """What features and labels look like, and the same in a row."""
        self._best: list[np.ndarray[Any, Any]] = []
        """The model at its best evaluation, where somebody wants it back."""

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

        self._structure = tf.nest.map_structure(free_batch, (sample.features, sample.labels))
        self._batch = tf.nest.flatten(self._structure)
        sums = [tf.TensorSpec(v.shape, v.dtype) for v in self._trainable]
        sums += [tf.TensorSpec(v.shape, tf.float32) for v in self._averaged]
        scalar = tf.TensorSpec([], tf.float32)
        salt = tf.TensorSpec([2], tf.uint32)
        own = tf.TensorSpec([LOSS], tf.float32)
        self._local = Traced(self._local_graph, [self._batch, scalar, salt])
        self._add = Traced(self._add_graph, [[*sums, scalar], [*sums, scalar]])
        self._commit = Traced(self._commit_graph, [sums, scalar, own])
        # The state is given and taken while others wait: one call, not one for each variable.
        kinds = [tf.TensorSpec(v.shape, v.dtype) for v in self._variables()]
        self._read = Traced(lambda: [v.value for v in self._variables()], [])
        self._assign = Traced(self._assign_graph, [kinds])
        self._nothing = [*(tf.zeros(s.shape, s.dtype) for s in sums), tf.zeros([])]

    # ------------------------------------------------------------------------------------------- step

    def step(
        self, parts: Sequence[MicroBatch], epoch_step: int, position: int, *, switch: bool, stop: bool
    ) -> StepResult:
        """Compute and reduce; raises RingBroken when the sum did not come about."""
        sums, weight, loss = self.compute(parts, epoch_step, position)
        return self.commit(sums, weight, loss, switch=switch, stop=stop)

    def compute(self, parts: Sequence[MicroBatch], step: int, position: int) -> tuple[Any, float, Any]:
        """This rank's weighted sums, their weight, the weighted loss. User code runs only here."""
        sums = self._nothing
        weight = 0.0
        for number, part in enumerate(parts):
            batch = tf.nest.flatten((part.features, part.labels))
            self._check(batch)
            share = part.records / self._global_batch
            weight += share
            more = self._local(*batch, tf.constant(share), self._salt(step, position))
            sums = self._add(*sums, *more) if number else more
            position += part.records
        *sums, loss = sums
        return sums, weight, loss

    def _check(self, batch: Sequence[Any]) -> None:
        """The traced function takes what it gets; whether that is what was traced is asked here."""
        for tensor, traced in zip(batch, self._batch, strict=True):
            if tensor.dtype != traced.dtype or not traced.shape.is_compatible_with(tensor.shape):
                raise ModelError(
                    f"{self._definition.path}: feed gave a batch of {tensor.dtype.name} with the shape "
                    f"{tensor.shape}, but {traced.dtype.name} with {traced.shape} for the first records; "
                    "records of different sizes must be padded or cut to one size in feed"
                )

    def _salt(self, step: int, position: int) -> Any:
        """Random layers draw anew in each step and micro-batch, and the same again for a repeated step."""
        if not self._seeds:
            return self._no_salt
        text = f"{step}/{position}".encode()
        return tf.constant([zlib.crc32(text), zlib.adler32(text)], tf.uint32)

    def commit(
        self, sums: Any, weight: float, loss: Any, *, switch: bool, stop: bool, drain: bool = False
    ) -> StepResult:
        """Sum over the ring and apply."""
        own = tf.constant([float(switch), float(stop), float(drain), weight])
        try:
            total = self._commit(*sums, loss, own)[0].numpy()
        except BROKEN as error:
            raise broken(error) from error
        return StepResult(
            loss=float(total[LOSS] / total[WEIGHT]) if total[WEIGHT] else float("nan"),
            switch=total[SWITCH] > 0,
            stop=total[STOP] > 0,
            draining=round(total[DRAIN]),
        )

    def _local_graph(self, batch: list[Any], weight: Any, salt: Any) -> list[Any]:
        log.info("the step is traced")
        features, labels = tf.nest.pack_sequence_as(self._structure, batch)
        salted = [tf.bitwise.bitwise_xor(tf.cast(s, tf.uint32), salt) for s in self._seed_values]
        seeds = {id(v): tf.cast(s, v.dtype) for v, s in zip(self._seeds, salted, strict=True)}
        frozen = [seeds.get(id(v), v.value) for v in self.model.non_trainable_variables]
        variables = [v.value for v in self._trainable]
        with tf.GradientTape() as tape:
            outputs, updated, extra = self.model.stateless_call(
                variables, frozen, features, training=True, return_losses=True
            )
            loss = tf.reduce_mean(tf.cast(self._loss(labels, outputs), tf.float32))
            loss = (loss + tf.add_n([tf.cast(e, tf.float32) for e in extra]) if extra else loss) * weight
        gradients = tape.gradient(loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        kept = {id(v): u for v, u in zip(self.model.non_trainable_variables, updated, strict=True)}
        averaged = [tf.cast(kept[id(v)], tf.float32) * weight for v in self._averaged]
        return [*(tf.convert_to_tensor(g) for g in gradients), *averaged, loss]

    def _add_graph(self, one: list[Any], other: list[Any]) -> list[Any]:
        return [a + b for a, b in zip(one, other, strict=True)]

    def _commit_graph(self, sums: list[Any], loss: Any, own: Any) -> Any:
        *reduced, total = self._ring.sum([*sums, tf.concat([own, [loss]], axis=0)])
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
        """Everything that makes the next step and the result what they are, as arrays to be read."""
        return [*read_arrays(self._read()), *self._best]

    def names(self) -> tuple[list[str], list[str]]:
        """Of the model's and of the optimizer's variables, in the order of `state`."""
        model = [v.path for v in self.model.variables]
        best = [f"best/{path}" for path in model] if self._best else []
        return model, [*(v.path for v in self.optimizer.variables), *best]

    def restore(self, arrays: Sequence[np.ndarray[Any, Any]]) -> None:
        count = len(self._variables())
        self._assign(*map(tf.convert_to_tensor, arrays[:count]))
        self._best = list(arrays[count:])

    def _assign_graph(self, values: list[Any]) -> list[Any]:
        for variable, value in zip(self._variables(), values, strict=True):
            variable.assign(value)
        return []

    def restore_model(self, arrays: Sequence[np.ndarray[Any, Any]]) -> None:
        """Only the model; the optimizer begins anew."""
        for variable, array in zip(self.model.variables, arrays, strict=True):
            variable.assign(array)

    def keep_best(self) -> None:
        """The model as it is now is the best so far; from now on this is part of the state."""
        self._best = read_arrays(self.model.variables)

    def take_best(self) -> None:
        """For the result: go back to the best, if it was kept."""
        if self._best:
            self.restore_model(self._best)


class Traced:
    """A function traced for one signature, called with its tensors in a row.

    Calling a tf.function binds, checks and looks up its arguments anew each time; with a dozen tensors that
    takes longer than a small step's arithmetic. Here it is done once, so callers must know what they pass.
    """

    def __init__(self, graph: Callable[..., Any], signature: list[Any]) -> None:
        traced = tf.function(graph, input_signature=signature, autograph=False)
        self._traced = traced.get_concrete_function()
        self._call = self._traced.inference_fn.call_flat
        self._captures = self._traced.captured_inputs

    def __call__(self, *tensors: Any) -> Any:
        """The outputs in a row."""
        return self._call(*tensors, *self._captures)
