"""The step of a reproducible job: the same bits, whoever computes which part of it.

A step is cut into the same parts for any number of workers, one for each virtual rank. What each part brings
is turned into whole numbers (`fixed_point.py`) before anything is added; whatever else is a float (a loss, a
time) travels as its bits, in a slot that one rank alone fills. docs/decisions/fixed-point.md says why.
"""

from __future__ import annotations

import hashlib
import itertools
import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from edl_allreduce import faults
from edl_allreduce.errors import ModelError, NotFinite, StateDiffers
from edl_allreduce.spec import OnNan
from edl_allreduce.worker.keras import fixed_point
from edl_allreduce.worker.keras.fixed_point import NOT_FINITE, SHIFT, ZERO, Levels
from edl_allreduce.worker.keras.pipeline import random_operations
from edl_allreduce.worker.keras.private import Traced
from edl_allreduce.worker.keras.trainer import NO_LOSS, Trainer, is_whole
from edl_allreduce.worker.keras.zoo import ModelDefinition
from edl_allreduce.worker.loop.steps import Contribution, MicroBatch, StepInput, StepResult
from edl_allreduce.worker.ring.base import Ring
from edl_allreduce.worker.ring.errors import BROKEN, broken

Words = npt.NDArray[np.int32]

VOTES = 4
"""Switch, stop, drain, records: these are added up. What follows are slots that one rank alone fills."""
MOST_REPEATS = 3
"""Of one step. The first repetition fits, if the same is computed again."""
LEVELS = "reproducible/levels"


@dataclass(frozen=True)
class ExactContribution(Contribution):
    """What one rank brings, and what it needs to bring it again in other units."""

    step: StepInput
    levels: Levels
    """In which the tensors were made."""
    losses: npt.NDArray[np.float32]
    """By virtual rank."""
    codes: Words
    """By virtual rank and tensor: the level that it needs."""
    checksum: int
    """Of the state that all this was computed from."""


@dataclass(frozen=True)
class _Summed:
    """The control words of all ranks."""

    votes: Words
    losses: npt.NDArray[np.float32]
    needs: Levels
    checksums: list[int]
    seconds: tuple[float, ...]


class ReproducibleTrainer(Trainer):
    """The model, its optimiser, and a step whose sums are exact."""

    def __init__(
        self,
        definition: ModelDefinition,
        ring: Ring,
        seed: int,
        *,
        virtual_ranks: int,
        on_nan: OnNan = OnNan.STOP,
    ) -> None:
        super().__init__(definition, ring, seed, on_nan=on_nan)
        self._virtual_ranks = virtual_ranks
        self._levels: Levels = np.zeros(0, np.int32)
        self.repeated = 0
        """Steps that were added a second time, in other units."""
        self.user_code: Callable[[], AbstractContextManager[None]] = nullcontext
        """Around what is computed between two collectives of a step."""
        self.probe = ""
        """What the first records give on this machine, with the first weights: a digest."""

    def build(self, sample: MicroBatch) -> None:
        super().build(sample)
        faults.lend(weights=self.model.trainable_variables)
        own = self.compute(StepInput(0, [sample], 0, sample.records))
        levels = fixed_point.fitting(own.levels, fixed_point.needed(own.codes))
        own = self._contribution(own.step, levels, own.checksum)
        self.probe = hashlib.sha256(
            b"".join(t.numpy().tobytes() for t in own.tensors) + own.losses.tobytes()
        ).hexdigest()

    def _trace(self, sample: MicroBatch) -> None:
        variables = [*self._trainable, *self._averaged]
        units, scalar = tf.TensorSpec([None], tf.float32), tf.TensorSpec([], tf.float32)
        share, salt = tf.TensorSpec([], tf.float64), tf.TensorSpec([2], tf.uint32)
        self._describe(sample)
        sums = [tf.TensorSpec(v.shape, tf.int32) for v in variables]
        self._local = Traced(self._exact_graph, [self._batch, share, salt, units, sums])
        used = [*self._trainable, *self._averaged]
        if len(used) < len(variables):  # the loss does not depend on all of them, as it turned out
            sums = [tf.TensorSpec(v.shape, tf.int32) for v in used]
            self._local = Traced(self._exact_graph, [self._batch, share, salt, units, sums])
        self._refuse_doubles(used)
        self._refuse_chance(random_operations(self._local.graph))
        self._levels = np.zeros(len(used), np.int32)
        self._nothing = [tf.zeros(s.shape, tf.int32) for s in sums]
        self._apply_sums = Traced(self._apply_graph, [sums, units, scalar])
        self._sum_up = Traced(self._checksum_graph, [])
        self._trace_state()

    def _refuse_doubles(self, variables: Sequence[Any]) -> None:
        doubles = [v.path for v in variables if tf.as_dtype(v.dtype) == tf.float64]
        if doubles:
            raise ModelError(
                f"{self._definition.path}: {doubles[0]} is float64, and --reproducible adds with the "
                "precision of float32. Use float32 or mixed precision, or leave --reproducible out."
            )

    def _refuse_chance(self, drawing: Sequence[str]) -> None:
        if drawing:
            raise ModelError(
                f"{self._definition.path}: the model or its loss draws random numbers or keeps a state that "
                f"TensorFlow has for each worker alone ({', '.join(drawing)}), so --reproducible refuses it. "
                "Use layers of Keras (keras.layers.Dropout, GaussianNoise) or keras.random with a "
                "SeedGenerator that belongs to a layer, and variables that are the model's own."
            )

    # ------------------------------------------------------------------------------------------- step

    def compute(self, step: StepInput) -> ExactContribution:
        """This rank's sums, exact, and a checksum of what they were computed from."""
        (checksum,) = self._sum_up()
        own = zlib.crc32(self._levels.tobytes()) ^ (int(checksum) & 0xFFFFFFFF)
        return self._contribution(step, self._levels, own)

    def _contribution(self, step: StepInput, levels: Levels, checksum: int) -> ExactContribution:
        losses = np.zeros(self._virtual_ranks, np.float32)
        codes = np.zeros((self._virtual_ranks, len(levels)), np.int32)
        sums, made = self._nothing, []
        per_unit = tf.constant(1 / fixed_point.units(levels, self._virtual_ranks))
        for part in step.parts:
            tensors = tf.nest.flatten((part.features, part.labels))
            self._check(tensors)
            share = tf.constant(part.records / step.batch, tf.float64)
            salt = self._salt(step.number, part.virtual_rank)
            *sums, needs, loss = self._local(*tensors, share, salt, per_unit, *sums)
            made.append((part.virtual_rank, needs, loss))
        for number, needs, loss in made:
            codes[number], losses[number] = needs.numpy(), loss.numpy()
        records = sum(part.records for part in step.parts)
        loss = float(losses.astype(np.float64).sum())
        return ExactContribution(sums, loss, records, step.batch, step, levels, losses, codes, checksum)

    def commit(
        self, own: Contribution, *, switch: bool, stop: bool, drain: bool = False, seconds: float = 0.0
    ) -> StepResult:
        """Sum over the ring and apply. Raises StateDiffers, on all ranks and with nothing applied, when they
        did not compute from the same state."""
        assert isinstance(own, ExactContribution)
        votes = [int(switch), int(stop), int(drain), own.records]
        sums, said = self._sum(own, votes, seconds)
        if len(set(said.checksums)) > 1:
            raise StateDiffers(said.checksums)
        for tries in itertools.count():
            if fixed_point.fits(own.levels, said.needs):
                break
            if tries == MOST_REPEATS:
                raise ModelError(
                    f"{self._definition.path}: a step gives something else each time it is computed, from "
                    "the same records and weights, so --reproducible cannot add it up"
                )
            self.repeated += 1
            with self.user_code():
                own = self._contribution(own.step, fixed_point.fitting(own.levels, said.needs), own.checksum)
            sums, said = self._sum(own, votes, seconds)
        switches, stops, drains, records = (int(vote) for vote in said.votes)
        mean = float(said.losses.astype(np.float64).sum()) * own.batch / records if records else NO_LOSS
        finite = bool(np.isfinite(said.losses).all())
        if not finite and self._on_nan is OnNan.STOP:
            raise NotFinite("the loss of this step is not finite")
        if self._on_nan is OnNan.SKIP and not isinstance(
            self.optimizer, keras.optimizers.LossScaleOptimizer
        ):  # gradients that overflow are its business: it lowers the scale
            finite = finite and not bool(np.any(said.needs[: len(self._trainable)] == NOT_FINITE))
        if finite or self._on_nan is not OnNan.SKIP:
            self._apply_exactly(sums, own, said, records)
        return StepResult(mean, switches > 0, stops > 0, drains, finite, said.seconds)

    def _apply_exactly(self, sums: list[Any], own: ExactContribution, said: _Summed, records: int) -> None:
        units = fixed_point.units(own.levels, self._virtual_ranks)
        units[said.needs == NOT_FINITE] = np.nan
        scale = own.batch / records if records else 0.0
        self._apply_sums(*sums, tf.constant(units), tf.constant(scale, tf.float32))
        self._levels = fixed_point.following(own.levels, said.needs)

    def _sum(self, own: ExactContribution, votes: list[int], seconds: float) -> tuple[list[Any], _Summed]:
        rank, size, count = self._ring.rank, self._ring.size, self._virtual_ranks
        of_ranks = np.zeros((2, size), np.int32)
        of_ranks[0, rank] = np.uint32(own.checksum).view(np.int32)
        of_ranks[1, rank] = np.float32(seconds).view(np.int32)
        words = [np.array(votes, np.int32), own.losses.view(np.int32), own.codes.ravel(), of_ranks.ravel()]
        try:
            *summed, control = self._ring.sum([*own.tensors, tf.constant(np.concatenate(words))])
        except BROKEN as error:
            raise broken(error) from error
        heard = np.asarray(control)
        ends = np.cumsum([VOTES, count, count * len(own.levels), size])
        counted, losses, codes, checksums, times = np.split(heard, ends)
        needs = fixed_point.needed(codes.reshape(count, -1))
        spent = tuple(times.view(np.float32).tolist())
        return [tf.convert_to_tensor(total) for total in summed], _Summed(
            counted, losses.view(np.float32), needs, checksums.tolist(), spent
        )

    # ----------------------------------------------------------------------------------------- graphs

    def _exact_graph(
        self, batch: list[Any], share: Any, salt: Any, per_unit: Any, sums: list[Any]
    ) -> list[Any]:
        """The sums with what one virtual rank adds to them, the level that each tensor needs, its loss."""
        *tensors, loss = self._local_graph(batch, share, salt)
        if len(tensors) != len(sums):
            return [*sums, tf.zeros([len(sums)], tf.int32), loss]
        added, highest = _add_exactly([tf.cast(t, tf.float32) for t in tensors], per_unit, sums)
        levels = tf.bitwise.right_shift(highest, 23) + SHIFT
        return [*added, tf.where(highest == 0, ZERO, levels), loss]

    def _part(self, variable: Any, value: Any, share: Any) -> Any:
        """The change travels: it is smaller than the value, so less of it is lost."""
        if is_whole(variable):
            moved = tf.cast(value, tf.int64) - tf.cast(variable.value, tf.int64)
        else:
            moved = value - variable.value
        return tf.cast(moved, tf.float32) * tf.cast(share, tf.float32)

    def _apply_graph(self, sums: list[Any], units: Any, scale: Any) -> list[Any]:
        by_tensor = zip(sums, tf.unstack(units * scale, len(sums)), strict=True)
        shaped = [tf.cast(total, tf.float32) * unit for total, unit in by_tensor]
        count = len(self._trainable)
        gradients = [tf.cast(g, v.dtype) for g, v in zip(shaped[:count], self._trainable, strict=True)]
        self.optimizer.apply(gradients, self._trainable)
        for variable, moved in zip(self._averaged, shaped[count:], strict=True):
            if is_whole(variable):
                moved = tf.cast(tf.round(moved), tf.int64) + tf.cast(variable.value, tf.int64)
                variable.assign(tf.cast(moved, variable.dtype))
            else:
                variable.assign(variable.value + tf.cast(moved, variable.dtype))
        return []

    def _checksum_graph(self) -> list[Any]:
        """Changes with any single element of the state; a sum of words, as fast as memory is read. The
        optimizer's too: low bits of it can rot for long before a weight shows it, and be in checkpoints."""
        sums = [_sum_of_words(v.value) * (2 * place + 1) for place, v in enumerate(self._variables())]
        return [tf.add_n(sums)]

    # ------------------------------------------------------------------------------------------ state

    def state(self) -> list[np.ndarray[Any, Any]]:
        arrays, own = super().state(), len(self._variables())
        return [*arrays[:own], self._levels, *arrays[own:]]

    def names(self) -> tuple[list[str], list[str]]:
        model, others = super().names()
        own = len(self.optimizer.variables)
        return model, [*others[:own], LEVELS, *others[own:]]

    def restore(self, arrays: Sequence[np.ndarray[Any, Any]]) -> None:
        own = len(self._variables())
        super().restore([*arrays[:own], *arrays[own + 1 :]])
        self._levels = np.array(arrays[own], np.int32)


@tf.function(jit_compile=True, autograph=False)  # type: ignore[untyped-decorator]
def _add_exactly(tensors: list[Any], per_unit: Any, sums: list[Any]) -> tuple[list[Any], Any]:
    """In one pass over the memory instead of six: compiled, since nothing here is rounded but where the code
    says so, whoever compiles it. With it the largest magnitude of each tensor, as the bits of a float: as
    whole numbers positive floats have the same order, and NaN is the highest."""
    scales = tf.unstack(per_unit, len(tensors))
    added = [
        total + tf.cast(tf.round(tensor * scale), tf.int32)
        for tensor, scale, total in zip(tensors, scales, sums, strict=True)
    ]
    magnitudes = [tf.bitwise.bitwise_and(tf.bitcast(t, tf.int32), 0x7FFFFFFF) for t in tensors]
    return added, tf.stack([tf.reduce_max(magnitude) for magnitude in magnitudes])


def _sum_of_words(value: Any) -> Any:
    size = tf.as_dtype(value.dtype).size
    if value.dtype == tf.bool or size == 1:
        words = tf.cast(value, tf.int32)
    elif size == 2:
        words = tf.cast(tf.bitcast(value, tf.int16), tf.int32)
    else:
        words = tf.bitcast(value, tf.int32)
    return tf.reduce_sum(words)
