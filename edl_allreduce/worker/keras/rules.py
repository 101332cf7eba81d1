"""How Keras itself would train a model: what is done alike here, and what is refused.

`model.fit` does more than a loop over batches. Whatever of it would change the result is honoured or refused
with a clear word, never ignored; docs/models.md has the table.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import keras
import tensorflow as tf

from edl_allreduce.errors import ModelError
from edl_allreduce.worker.keras.private import global_seed_generator
from edl_allreduce.worker.loop.steps import MicroBatch

OVERRIDES = ("train_step", "compute_loss", "test_step", "make_train_function")
"""Methods of a model by which `fit` can be changed."""


def takes_training(model: Any) -> bool:
    """Whether its `call` has the argument: Keras' trainer passes `training` only then."""
    return "training" in inspect.signature(model.call).parameters


def call(model: Any, features: Any, *, training: bool) -> Any:
    """The outputs, in full precision as Keras' losses and metrics get them.

    It is the model's `__call__` that hands `training` and masks down to the layers, casts to the policy's
    type and adds losses; `call` alone does not.
    """
    outputs = model(features, training=training) if takes_training(model) else model(features)
    return tf.nest.map_structure(_full_precision, outputs)


def _full_precision(tensor: Any) -> Any:
    if getattr(tensor, "dtype", None) not in (tf.float16, tf.bfloat16):
        return tensor  # also what is no tensor at all
    return _masked(tf.cast(tensor, tf.float32), _mask(tensor))


def _mask(tensor: Any) -> Any:
    """Keras keeps the mask of a tensor beside it; its losses look for it there."""
    return getattr(tensor, "_keras_mask", None)


def _masked(tensor: Any, mask: Any) -> Any:
    if mask is not None:
        tensor._keras_mask = mask
    return tensor


# ------------------------------------------------------------------------------------------- refusals


def check(model: Any, path: str, *, uses_compile: bool = False) -> list[str]:
    """Raises ModelError for what cannot be honoured; returns what people should know. `uses_compile`: what
    the model was compiled with is what counts."""
    for name in OVERRIDES:
        if getattr(type(model), name) is not getattr(keras.Model, name):
            raise ModelError(
                f"{path}: {type(model).__name__} overrides {name}(), which only `model.fit` calls: here it "
                "would have no effect. Put what it computes into loss(labels, predictions) or "
                "self.add_loss(…) in call(), or write the loop yourself (docs/running/own-loop.md)."
            )
    if any(getattr(v, "overwrite_with_gradient", False) for v in model.trainable_variables):
        raise ModelError(
            f"{path}: the model has variables that are overwritten by their gradients (float8 training); "
            "their values cannot be averaged over workers. Use mixed_bfloat16 or float32."
        )
    notices = []
    if model.compiled and not uses_compile:
        notices.append(
            f"{path} calls model.compile(), which has no effect here: loss, optimizer and metrics are the "
            "functions of the file"
        )
    random_or_averaging = any(not v.trainable for v in model.variables)
    if not takes_training(model) and random_or_averaging:
        notices.append(
            f"{path}: {type(model).__name__}.call() has no argument `training`, so dropout and batch "
            "normalisation in it work as in inference, as they would in `model.fit`; write "
            "call(self, inputs, training=None)"
        )
    return notices


def scaling(model: Any, optimizer: Any) -> Any:
    """The optimizer, with loss scaling where `compile` would add it: small gradients vanish in float16."""
    scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if model.dtype_policy.name != "mixed_float16" or scales:
        return optimizer
    return keras.optimizers.LossScaleOptimizer(optimizer, name="loss_scale_optimizer")


# ------------------------------------------------------------------------------------ found by trying


SEED_STATE = "seed_generator_state"
"""Keras' name for the state of a random layer."""


@dataclass(frozen=True)
class Facts:
    """What one training pass over the first records tells about a model."""

    seeds: list[Any]
    """Variables that hold the state of random layers."""
    draws: list[int]
    """How often one pass draws from each of them."""
    summed_loss: bool
    """The loss is a sum over the records of a batch, not a mean.

    A mean counts by the records that it was made of. A sum over the whole batch is the sum of the sums over
    its parts: weighted like a mean it would shrink with every worker more.
    """
    summed_additions: frozenset[int]
    """The same for losses that layers add, by their places in `model.losses`."""
    notices: list[str]


class _Kind(Enum):
    MEAN = "mean"
    SUM = "sum"
    OTHER = "depends on which records come together"


EXACT, ROUGH = 1e-3, 0.2
"""How far the loss of twice the same records may be from once or twice the loss; random layers draw anew."""


def find_facts(model: Any, loss: Callable[..., Any], sample: MicroBatch) -> Facts:
    """Try the model on these records, and its losses on the same records twice: a mean stays as it is, a sum
    doubles. The model is left as it was."""
    once = _try(model, sample.features)
    one = tf.reduce_mean(tf.cast(loss(sample.labels, once.outputs), tf.float64))
    kind, summed = _Kind.MEAN, frozenset[int]()
    notices = []
    try:
        kind = _kind(float(one), _loss_of_twice(loss, sample, once.outputs), EXACT)
        summed = _summed_additions(model, sample, once)
    except Exception as error:  # noqa: BLE001  user code that cannot take a batch of another size
        notices.append(
            "whether the loss is a mean could not be tried, since it cannot take twice as many records "
            f"({type(error).__name__}); it is taken for one"
        )
    if kind is _Kind.SUM or summed:
        what = "the loss" if kind is _Kind.SUM else "a loss that a layer adds"
        notices.append(
            f"{what} is a sum over the records of a batch: it is summed over all workers, as over one whole "
            "batch. (A mean would not grow with the batch.)"
        )
    if kind is _Kind.OTHER:
        notices.append(
            "the loss of a record depends on the others in its batch, so the result depends on how a batch "
            "is split, that is on the number of workers"
        )
    return Facts(once.seeds, once.draws, kind is _Kind.SUM, summed, notices)


def _loss_of_twice(loss: Callable[..., Any], sample: MicroBatch, outputs: Any) -> float:
    def twice(tensor: Any) -> Any:
        if not isinstance(tensor, tf.Tensor) or not tensor.shape or tensor.shape[0] != sample.records:
            return tensor
        return _masked(_doubled(tensor), _doubled(_mask(tensor)))

    labels, both = tf.nest.map_structure(twice, (sample.labels, outputs))
    return float(tf.reduce_mean(tf.cast(loss(labels, both), tf.float64)))


def _summed_additions(model: Any, sample: MicroBatch, once: _Trial) -> frozenset[int]:
    if not once.added:
        return frozenset()
    twice = _try(model, tf.nest.map_structure(_doubled, sample.features))
    pairs = enumerate(zip(once.added, twice.added, strict=True))
    limit = ROUGH if once.seeds else EXACT
    return frozenset(place for place, (a, b) in pairs if _kind(a, b, limit) is _Kind.SUM)


@dataclass(frozen=True)
class _Trial:
    outputs: Any
    added: list[float]
    seeds: list[Any]
    draws: list[int]


def _try(model: Any, features: Any) -> _Trial:
    """A training pass that leaves the model's state alone."""
    values = [(v, tf.convert_to_tensor(v.value)) for v in model.variables]
    with keras.StatelessScope(state_mapping=values, collect_losses=True) as scope:
        outputs = call(model, features, training=True)
        added = [float(tf.reduce_sum(tf.cast(value, tf.float64))) for value in model.losses]
    seeds = [v for v in model.variables if v.name == SEED_STATE]
    draws = [int(scope.get_current_value(v)[1] - tf.convert_to_tensor(v.value)[1]) for v in seeds]
    unseeded = global_seed_generator()
    if unseeded is not None and scope.get_current_value(unseeded.state) is not None:
        # Random operations without a seed of their own: the model does not know this variable.
        return _Trial(outputs, added, [*seeds, unseeded.state], [*draws, 1])
    return _Trial(outputs, added, seeds, draws)


def _doubled(tensor: Any) -> Any:
    return None if tensor is None else tf.concat([tensor, tensor], axis=0)


def _kind(once: float, twice: float, limit: float) -> _Kind:
    if abs(twice - once) <= limit * abs(once):
        return _Kind.MEAN  # also where there is nothing to tell: zero, or not a number
    if abs(twice - 2 * once) <= limit * abs(once):
        return _Kind.SUM
    return _Kind.OTHER if once == once else _Kind.MEAN


def total_loss(
    loss: Callable[..., Any], labels: Any, outputs: Any, added: Sequence[Any], facts: Facts, share: Any
) -> Any:
    """What this part of a batch contributes to the loss of the whole, losses that layers added included."""
    given = tf.convert_to_tensor(loss(labels, outputs))
    main = tf.reduce_mean(given if given.dtype == tf.float64 else tf.cast(given, tf.float32))
    share = tf.cast(share, main.dtype)
    total = main if facts.summed_loss else main * share
    for place, value in enumerate(added):
        extra = tf.reduce_sum(tf.cast(value, main.dtype))
        total += extra if place in facts.summed_additions else extra * share
    return total


def evaluation_loss(loss: Callable[..., Any], labels: Any, outputs: Any, added: Sequence[Any]) -> Any:
    """As `model.evaluate` reports it: with regularisation and what layers add."""
    main = tf.reduce_mean(tf.cast(loss(labels, outputs), tf.float64))
    return main + sum(tf.reduce_sum(tf.cast(value, tf.float64)) for value in added)
