"""One optimiser update: gradients of this rank's records, one sum over the ring, one update.

The model is called as Keras' own trainer calls it, but on values instead of its variables, so nothing of a
step is visible before the sum succeeded: a step is applied as a whole or not at all, batch statistics and
dropout included. The functions are traced once and outlive every ring.

A large model's gradients are summed in buckets that begin while the backward pass computes the others; what
they bring is applied when all of them have arrived (docs/decisions/overlapped-steps.md).
"""

from __future__ import annotations

import logging
import math
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edl_allreduce.errors import ModelError, NotFinite, RingBroken
from edl_allreduce.spec import GradientCompression, OnNan
from edl_allreduce.worker.keras import rows
from edl_allreduce.worker.keras import rules as keras_rules
from edl_allreduce.worker.keras.arrays import read_arrays
from edl_allreduce.worker.keras.buckets import buckets
from edl_allreduce.worker.keras.private import Traced, converted
from edl_allreduce.worker.keras.zoo import ModelDefinition
from edl_allreduce.worker.loop.steps import (
    LOSS,
    WEIGHT,
    Contribution,
    InTwoParts,
    Meet,
    MicroBatch,
    StepInput,
    StepResult,
    Votes,
    seconds_of,
    step_result,
)
from edl_allreduce.worker.ring.base import Ring
from edl_allreduce.worker.ring.errors import BROKEN, broken

log = logging.getLogger(__name__)

NOT_FINITE = "the loss of this step is not finite"
NO_LOSS = float("nan")
"""Of a step without a record that could be read."""


class Trainer(InTwoParts):
    """The model, its optimiser, and the traced step."""

    def __init__(
        self,
        definition: ModelDefinition,
        ring: Ring,
        seed: int | None,
        *,
        on_nan: OnNan = OnNan.STOP,
        bucket_mb: float = 0.0,
        compression: GradientCompression = GradientCompression.NONE,
    ) -> None:
        """`seed`: None for a model that was made before, with whatever it was made with; `bucket_mb`: how
        many megabytes of gradients are summed together, 0 for a choice by the size of the model."""
        if seed is not None:
            keras.utils.set_random_seed(seed)
        self._definition = definition
        self._loss = converted(definition.loss)
        self._ring = ring
        self._on_nan = on_nan
        self._bucket_mb = bucket_mb
        self._halved = compression is GradientCompression.FP16
        self._overlapped: Traced | None = None
        """Computes and sums at once; None where all gradients are summed together."""
        self._meet: Meet = lambda loss: Votes()
        self._records = 0
        """Of this rank, in the step at hand."""
        self._met = False
        """Whether the step at hand has computed its own part."""
        self._raised: BaseException | None = None
        """By whoever was asked for votes from inside the step."""
        self.model = self._made(definition.model, keras.Model)
        self.optimizer = keras_rules.scaling(
            self.model, self._made(definition.optimizer, keras.optimizers.Optimizer)
        )
        self.notices: list[str] = []
        """What people should know about how this model is trained here."""
        self._trainable: list[Any] = []
        """What the loss depends on; Keras leaves other variables alone, weight decay included."""
        self._tables: list[int] = []
        """The places of gradients of which only some rows travel."""
        self._averaged: list[Any] = []
        self._counted: list[Any] = []
        """What counts over steps, such as metrics: each part of a batch adds to it, whatever its share."""
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
                f"{kind.__module__}.{kind.__name__}, got {type(made).__name__}{_of_keras_2(made)}"
            )
        return made

    def build(self, sample: MicroBatch) -> None:
        """Make all variables, trace the step and run it once, and leave the state as it was."""
        if not self.model.built:
            self.model(sample.features, training=False)
        self.notices = self._check_model()
        self._trainable = list(self.model.trainable_variables)
        if not self._trainable:
            raise ModelError(f"{self._definition.path}: the model has no trainable variable")
        self.optimizer.build(self._trainable)
        self._facts = keras_rules.find_facts(self.model, self._loss, sample)
        self.notices += self._facts.notices
        self._seed_values = [v.numpy().astype(np.uint32) for v in self._facts.seeds]
        seeds = {id(v) for v in self._facts.seeds}
        self._averaged = [v for v in self.model.non_trainable_variables if id(v) not in seeds]
        self._trace(sample)
        before = self.state()
        for parts in ([sample, sample], [sample], []):
            with suppress(NotFinite):  # the first step will tell where people look
                self.step(StepInput(0, parts, 0, sample.records * max(1, len(parts))))
        self.restore(before)

    def _check_model(self) -> list[str]:
        """Raises ModelError for what cannot be trained as it is; returns what people should know."""
        return keras_rules.check(self.model, str(self._definition.path))

    def _count(self, features: Any, labels: Any, outputs: Any) -> None:
        """Add to what is counted; called where only values change."""

    def _counted_part(self, variable: Any, value: Any, share: Any) -> Any:
        """What this part of a batch adds to a variable that counts."""
        return tf.cast(value, _kind(variable))

    def _seed_of(self, place: int) -> Any:
        """What a random layer draws from in the first step."""
        return self._seed_values[place]

    def _trace(self, sample: MicroBatch) -> None:
        self._describe(sample)
        scalar = tf.TensorSpec([], tf.float32)
        salt = tf.TensorSpec([2], tf.uint32)
        own = tf.TensorSpec([None], tf.float32)  # with a slot for each rank of whatever ring there is
        self._local = Traced(self._local_graph, [self._batch, tf.TensorSpec([], tf.float64), salt])
        sums = [tf.TensorSpec(v.shape, v.dtype) for v in self._trainable]
        sums += [tf.TensorSpec(v.shape, _kind(v)) for v in (*self._averaged, *self._counted)]
        self._add = Traced(self._add_graph, [[*sums, scalar], [*sums, scalar]])
        tables = set(self._tables)
        if tables:
            log.info("sent in rows: %s", ", ".join(self._trainable[p].path for p in self._tables))
        sizes = [0 if p in tables else _bytes(v) for p, v in enumerate(self._trainable)]
        *early, last = ([p for p in b if p not in tables] for b in buckets(sizes, self._bucket_mb))
        self._buckets = [*filter(None, early), last]
        if len(self._buckets) > 1:
            more, before = tf.TensorSpec([], tf.bool), [*sums, scalar]
            signature = [self._batch, tf.TensorSpec([], tf.float64), salt, before, more, scalar]
            self._overlapped = Traced(self._overlapped_graph, signature)
        self._commit = Traced(self._commit_graph, [sums, scalar, own, scalar])
        self._nothing = [*(tf.zeros(s.shape, s.dtype) for s in sums), tf.zeros([])]
        self._trace_state()

    def _describe(self, sample: MicroBatch) -> None:
        def free_batch(tensor: Any) -> Any:
            return tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)

        self._structure = tf.nest.map_structure(free_batch, (sample.features, sample.labels))
        self._batch = tf.nest.flatten(self._structure)

    def _trace_state(self) -> None:
        """The state is given and taken while others wait: one call, not one for each variable."""
        kinds = [tf.TensorSpec(v.shape, v.dtype) for v in self._variables()]
        self._read = Traced(lambda: [v.value for v in self._variables()], [])
        self._assign = Traced(self._assign_graph, [kinds])

    # ------------------------------------------------------------------------------------------- step

    def step(self, step: StepInput, *, switch: bool = False, stop: bool = False) -> StepResult:
        """Compute and reduce; raises RingBroken when the sum did not come about."""
        return self.update(step, lambda loss: Votes(switch, stop))

    def update(self, step: StepInput, meet: Meet) -> StepResult:
        """One step. Where the model is large, the sums begin with the backward pass of the last part."""
        if self._overlapped is None or not step.parts:
            return super().update(step, meet)
        *parts, last = self._inputs(step)
        before = self._computed(parts)
        self._met, self._raised = False, None

        def meet_once(loss: Any) -> Votes:
            self._met = True
            return meet(loss)

        self._meet, self._records = meet_once, sum(part.records for part in step.parts)
        more, batch = tf.constant(bool(parts)), tf.constant(float(step.batch))
        overlapped = self._overlapped
        try:
            return self._heard(lambda: overlapped(*last, *before, more, batch))
        except (RingBroken, tf.errors.OpError) as error:
            if self._raised is not None:
                raise self._raised from None
            # A model may fail with the errors of a ring: then it fails again, and says so.
            if isinstance(error, RingBroken) and not self._met:
                self._local(*last)
            raise

    def _asked(self, loss: Any) -> Any:
        """What this rank says to the others, from inside the step, when its own part is computed."""
        try:
            return self._control(self._meet(loss), self._records)
        except BaseException as error:
            self._raised = error  # TensorFlow would make another of it
            raise

    def _control(self, votes: Votes, records: int) -> np.ndarray[Any, Any]:
        said = [votes.switch, votes.stop, votes.drain, records]
        return np.array([*said, *seconds_of(self._ring.rank, self._ring.size, votes.seconds)], np.float32)

    def compute(self, step: StepInput) -> Contribution:
        """This rank's sums, weighted by its share of the records of all ranks. User code runs only here."""
        *sums, loss = self._computed(self._inputs(step))
        return Contribution(sums, loss, sum(part.records for part in step.parts), step.batch)

    def _inputs(self, step: StepInput) -> list[list[Any]]:
        """What the traced step gets for each part."""
        inputs, offset = [], step.offset
        for part in step.parts:
            tensors = tf.nest.flatten((part.features, part.labels))
            self._check(tensors)
            share = tf.constant(part.records / step.batch, tf.float64)
            inputs.append([*tensors, share, self._salt(step.number, offset)])
            offset += part.records
        return inputs

    def _computed(self, parts: list[list[Any]]) -> list[Any]:
        """The sums of these parts, and their loss."""
        sums = self._nothing
        for number, inputs in enumerate(parts):
            more = self._local(*inputs)
            sums = self._add(*sums, *more) if number else more
        return sums

    def _check(self, batch: Sequence[Any]) -> None:
        """The traced function takes what it gets; whether that is what was traced is asked here."""
        for tensor, traced in zip(batch, self._batch, strict=True):
            if tensor.dtype != traced.dtype or not traced.shape.is_compatible_with(tensor.shape):
                raise ModelError(
                    f"{self._definition.path}: feed gave a batch of {tensor.dtype.name} with the shape "
                    f"{tensor.shape}, but {traced.dtype.name} with {traced.shape} for the first records; "
                    "records of different sizes must be padded or cut to one size in feed"
                )

    def _salt(self, step: int, offset: int) -> Any:
        """Random layers draw anew in each step and for each part of its batch, and the same again for a step
        that is repeated. What one worker draws that has the batch in one piece, Keras would draw, too."""
        if not self._seed_values:
            return self._no_salt
        part = zlib.crc32(str(offset).encode()) if offset else 0
        return tf.constant([part, step & 0xFFFFFFFF], tf.uint32)

    def commit(
        self, own: Contribution, *, switch: bool, stop: bool, drain: bool = False, seconds: float = 0.0
    ) -> StepResult:
        """Sum over the ring and apply; raises NotFinite, on all ranks and with nothing applied, when the job
        is to stop then."""
        control = tf.constant(self._control(Votes(switch, stop, drain, seconds), own.records))
        batch = tf.constant(float(own.batch))
        return self._heard(lambda: self._commit(*own.tensors, own.loss, control, batch))

    def _heard(self, call: Callable[[], Any]) -> StepResult:
        """What the sum says, in our words also when it did not come about."""
        try:
            total, finite = call()
        except BROKEN as error:
            raise broken(error) from error
        except tf.errors.InvalidArgumentError as error:
            if NOT_FINITE not in str(error):
                raise
            raise NotFinite(NOT_FINITE) from None
        return step_result(total.numpy(), finite=bool(finite.numpy()))

    def _local_graph(self, batch: list[Any], share: Any, salt: Any) -> list[Any]:
        log.info("the step is traced")
        features, labels = tf.nest.pack_sequence_as(self._structure, batch)
        facts = self._facts
        drawn = [salt * np.array([1, draws], np.uint32) for draws in facts.draws]
        seeds = [
            (variable, tf.cast(self._seed_of(place) + more, variable.dtype))
            for place, (variable, more) in enumerate(zip(facts.seeds, drawn, strict=True))
        ]
        values = [(v, v.value) for v in (*self._trainable, *self._averaged)]
        values += [(v, tf.zeros(v.shape, v.dtype)) for v in self._counted]
        with tf.GradientTape() as tape:
            with keras.StatelessScope(state_mapping=[*values, *seeds], collect_losses=True) as scope:
                outputs = keras_rules.call(self.model, features, training=True)
                added = self.model.losses
                if self._counted:  # among it what the loss counts
                    loss = keras_rules.total_loss(self._loss, labels, outputs, added, facts, share)
                    self._count(features, labels, outputs)
            if not self._counted:  # here it may keep a state of its own, such as that of its random numbers
                loss = keras_rules.total_loss(self._loss, labels, outputs, added, facts, share)
            scaled = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, [v.value for v in self._trainable])
        averaged = [self._part(v, scope.get_current_value(v), share) for v in self._averaged]
        used = [(v, g) for v, g in zip(self._trainable, gradients, strict=True) if g is not None]
        if not used:
            raise ModelError(
                f"{self._definition.path}: the loss does not depend on any trainable variable of the model, "
                "so there is nothing to train; does it use `predictions`?"
            )
        self._trainable = [v for v, _ in used]
        self._tables = [p for p, (v, g) in enumerate(used) if self._goes_as_rows(v, g)]
        counted = [self._counted_part(v, scope.get_current_value(v), share) for v in self._counted]
        gradients = [tf.ensure_shape(tf.convert_to_tensor(g), v.shape) for v, g in used]
        return [*gradients, *averaged, *counted, tf.cast(loss, tf.float32)]

    def _goes_as_rows(self, variable: Any, gradient: Any) -> bool:
        if not isinstance(gradient, tf.IndexedSlices) or math.isinf(self._bucket_mb):
            return False
        return rows.worthwhile(variable.shape, tf.as_dtype(variable.dtype).size)

    def _part(self, variable: Any, value: Any, share: Any) -> Any:
        """What this part of a batch adds to a variable that is averaged. Of whole numbers the change travels:
        a large one would be rounded on the way."""
        kind = _kind(variable)
        moved = value
        if is_whole(variable):
            moved = tf.cast(value, tf.int64) - tf.cast(variable.value, tf.int64)
        return tf.cast(moved, kind) * tf.cast(share, kind)

    def _add_graph(self, one: list[Any], other: list[Any]) -> list[Any]:
        return [a + b for a, b in zip(one, other, strict=True)]

    def _overlapped_graph(
        self, parts: list[Any], share: Any, salt: Any, before: list[Any], more: Any, batch: Any
    ) -> list[Any]:
        """The last part of a step, and all that comes after it. `before`: the sums of the other parts, if
        there are `more`."""
        own = self._local_graph(parts, share, salt)
        *sums, loss = [tf.cond(more, _adder(a, b), _giver(a)) for a, b in zip(own, before, strict=True)]
        with tf.control_dependencies([*sums, loss]):
            control = tf.numpy_function(self._asked, [loss], tf.float32)
        control.set_shape([None])
        return self._commit_graph(sums, loss, control, batch)

    def _summed(self, sums: list[Any], control: Any) -> tuple[list[Any], Any]:
        """Over the ring, in the same groups on all ranks whatever each of them has computed. Votes and what
        is averaged go with the gradients that are ready last."""
        *early, last = groups = self._buckets
        if self._halved and last:  # nothing else may be rounded
            *early, last = groups = [*groups, []]
        last = [*last, *range(len(self._trainable), len(sums))]
        reduced: dict[int, Any] = {}
        for group, places in enumerate(early, start=1):
            summed = self._ring.sum([sums[p] for p in places], group, halved=self._halved)
            reduced.update(zip(places, summed, strict=True))
        if self._tables:
            tables = rows.summed(
                [sums[p] for p in self._tables],
                lambda marks: self._ring.sum(marks, len(groups)),
                lambda touched: self._ring.sum(touched, len(groups) + 1, halved=self._halved),
            )
            reduced.update(zip(self._tables, tables, strict=True))
        *others, total = self._ring.sum([*(sums[p] for p in last), control])
        reduced.update(zip(last, others, strict=True))
        return [reduced[place] for place in range(len(sums))], total

    def _commit_graph(self, sums: list[Any], loss: Any, own: Any, batch: Any) -> list[Any]:
        control = tf.concat([own[:LOSS], [loss * batch], own[LOSS:]], axis=0)
        reduced, total = self._summed(sums, control)
        if self._on_nan is OnNan.STOP:
            # When all sums have arrived: a step that failed before might never begin some of them, and the
            # other ranks would wait for those. TensorFlow's own order of stateful operations happens to
            # give the same, as long as nobody changes the order of these lines.
            with tf.control_dependencies([*reduced, total]):
                total = tf.debugging.check_numerics(total, NOT_FINITE)
                if self._halved and not isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
                    count = len(self._trainable)  # a loss that explodes shows here first
                    reduced[:count] = [tf.debugging.check_numerics(g, NOT_FINITE) for g in reduced[:count]]
        # The shares are of all records; without the bad ones that were left out they sum to less than one.
        scale = tf.math.divide_no_nan(batch, total[WEIGHT])
        if self._on_nan is not OnNan.SKIP:
            with tf.control_dependencies([*reduced, total]):  # all of it, or nothing
                self._apply(reduced, scale)
            return [total, tf.math.is_finite(total[LOSS])]
        judged = [*reduced[: len(self._trainable)], total]
        if isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
            judged = [total]  # gradients that overflow are its business: it lowers the scale
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(t)) for t in judged])

        def apply() -> Any:
            self._apply(reduced, scale)
            return finite

        with tf.control_dependencies(reduced):
            return [total, tf.cond(finite, apply, lambda: finite)]

    def _apply(self, reduced: list[Any], scale: Any) -> None:
        count = len(self._trainable)
        last = count + len(self._averaged)
        scaled = [value * tf.cast(scale, value.dtype) for value in reduced[:last]]
        self.optimizer.apply(scaled[:count], self._trainable)
        for variable, value in zip(self._counted, reduced[last:], strict=True):
            variable.assign_add(tf.cast(value, variable.dtype))
        for variable, value in zip(self._averaged, scaled[count:], strict=True):
            if is_whole(variable):
                moved = tf.cast(tf.round(value), tf.int64)
                variable.assign(tf.cast(tf.cast(variable.value, tf.int64) + moved, variable.dtype))
            else:  # without a single record there is nothing new to know
                new = tf.where(scale > 0, tf.cast(value, variable.dtype), variable.value)
                variable.assign(new)

    # ------------------------------------------------------------------------------------------ state

    def _variables(self) -> list[Any]:
        return [*self.model.variables, *self.optimizer.variables, *self._counted]

    def state(self) -> list[np.ndarray[Any, Any]]:
        """Everything that makes the next step and the result what they are, as arrays to be read."""
        return [*read_arrays(self._read()), *self._best]

    def names(self) -> tuple[list[str], list[str]]:
        """Of the model's and of the optimizer's variables, in the order of `state`."""
        model = [v.path for v in self.model.variables]
        best = [f"best/{path}" for path in model] if self._best else []
        others = [v.path for v in (*self.optimizer.variables, *self._counted)]
        return model, [*others, *best]

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

    def conclude(self) -> None:
        """Make the result of the state, as Keras does at the end of `fit`: averaged weights take the place of
        the last ones (`use_ema`), and the best ones that of both, where they were kept."""
        self.optimizer.finalize_variable_values(self.model.trainable_variables)
        if self._best:
            self.restore_model(self._best)


def is_whole(variable: Any) -> bool:
    """Whether its values are whole numbers."""
    return not tf.as_dtype(variable.dtype).is_floating


def _kind(variable: Any) -> Any:
    """In which type the values of a variable are averaged."""
    return tf.float64 if tf.as_dtype(variable.dtype) == tf.float64 else tf.float32


def _bytes(variable: Any) -> int:
    """Of its gradient."""
    return int(np.prod(variable.shape, dtype=np.int64)) * int(tf.as_dtype(variable.dtype).size)


def _adder(one: Any, other: Any) -> Callable[[], Any]:
    return lambda: one + other


def _giver(one: Any) -> Callable[[], Any]:
    return lambda: tf.identity(one)


def _of_keras_2(made: Any) -> str:
    if not type(made).__module__.startswith("tf_keras"):
        return ""
    return " of tf_keras (Keras 2), which is not supported: unset TF_USE_LEGACY_KERAS, or import keras"
