"""Each kind of model is trained by Keras' own `fit` and by us, and comes out the same.

Ours has the batch in one piece (one worker), or split over three workers, of which one is lost in between
and a newcomer takes over the state. Everything computes in double precision, so that "the same" can be strict
on any processor: what is left are the last bits of sums in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from edl_allreduce.core.schedule import Span, share
from edl_allreduce.data import open_source
from edl_allreduce.worker.keras.evaluation import Evaluator
from edl_allreduce.worker.keras.trainer import Trainer
from edl_allreduce.worker.keras.zoo import ModelDefinition
from edl_allreduce.worker.loop.steps import MicroBatch, StepInput
from edl_allreduce.worker.ring.solo import SoloRing
from tests.same_as_keras import kinds

pytestmark = pytest.mark.tensorflow

RECORDS, BATCH, EPOCHS = 42, 12, 2  # the last batch of an epoch is smaller
STEPS = EPOCHS * -(-RECORDS // BATCH)
LOST_AT = 3
SEED = 5


def make_data() -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    words = random.integers(1, kinds.WORDS, (RECORDS, kinds.LENGTH))
    words[:, -2:] *= random.integers(0, 2, (RECORDS, 1))  # some are padded
    return {
        "numbers": random.normal(size=(RECORDS, kinds.WIDTH)),
        "words": words,
        "kind": random.integers(0, kinds.CLASSES, RECORDS),
        "tags": random.integers(0, kinds.CLASSES, (RECORDS, kinds.LENGTH)),
        "size": random.normal(size=(RECORDS, 1)),
    }


DATA = make_data()


@dataclass(frozen=True)
class Case:
    """A model with what trains it."""

    name: str
    model: Callable[[], Any] = kinds.functional
    optimizer: Callable[[], Any] = kinds.optimizer
    loss: Callable[..., Any] = kinds.loss
    features: Any = "numbers"
    labels: Any = "kind"
    workers: tuple[int, ...] = (1, 3)
    compiled: dict[str, Any] = field(default_factory=dict)
    """What Keras is given where that is not the same."""
    fit_optimizer: Callable[[], Any] | None = None


ALONE = (1,)
"""For kinds that depend on how a batch is split; docs/models.md says why."""


class DenseAdam(keras.optimizers.Adam):
    """Keras squares the gradient of a word for each of its places in the batch; we add them up first."""

    def apply(self, grads, trainable_variables=None):
        super().apply([tf.convert_to_tensor(g) for g in grads], trainable_variables)


def schedule() -> Any:
    return keras.optimizers.schedules.CosineDecay(0.2, STEPS)


class SGD(keras.optimizers.SGD):
    """A user's own optimizer."""

    def update_step(self, gradient, variable, learning_rate):
        self.assign_sub(variable, 0.05 * keras.ops.cast(gradient, variable.dtype))


def with_loss_scale() -> Any:
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), dynamic_growth_steps=3)


def several_optimizers() -> Any:
    optimizers = keras.optimizers
    return optimizers.MultiOptimizer(
        optimizers.OptimizerMap(optimizers.SGD(0.1), {".*bias": optimizers.Adam(0.01)})
    )


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "nesterov": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "amsgrad": lambda: keras.optimizers.Adam(0.01, amsgrad=True),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
    "schedule_free_adamw": lambda: keras.optimizers.ScheduleFreeAdamW(0.01),
    "adamax": lambda: keras.optimizers.Adamax(0.01),
    "nadam": lambda: keras.optimizers.Nadam(0.01),
    "adadelta": lambda: keras.optimizers.Adadelta(0.5),
    "adagrad": lambda: keras.optimizers.Adagrad(0.05),
    "adafactor": lambda: keras.optimizers.Adafactor(0.05),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01, momentum=0.5, centered=True),
    "ftrl": lambda: keras.optimizers.Ftrl(0.05),
    "lamb": lambda: keras.optimizers.Lamb(0.05),
    "lion": lambda: keras.optimizers.Lion(0.01),
    "muon": lambda: keras.optimizers.Muon(0.01),
    "several": several_optimizers,
    "own": lambda: SGD(0.1),
    "learning-rate schedule": lambda: keras.optimizers.SGD(schedule(), momentum=0.9),
    "clipnorm": lambda: keras.optimizers.SGD(0.5, clipnorm=0.1),
    "clipvalue": lambda: keras.optimizers.SGD(0.5, clipvalue=0.02),
    "global_clipnorm": lambda: keras.optimizers.SGD(0.5, global_clipnorm=0.2),
    "weight_decay": lambda: keras.optimizers.SGD(0.1, weight_decay=0.05),
    "use_ema": lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8),
    "ema_overwrite": lambda: keras.optimizers.SGD(
        0.1, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3
    ),
    "gradient_accumulation_steps": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2),
    "loss_scale_factor": lambda: keras.optimizers.SGD(0.1, loss_scale_factor=1024.0),
    "LossScaleOptimizer": with_loss_scale,
}

WORDS = {"features": "words"}
BOTH = {"numbers": "numbers", "words": "words"}
CASES = [
    Case("sequential", kinds.sequential),
    Case("sequential, not built", kinds.not_built_sequential),
    Case("functional"),
    Case("nested, adds a loss", kinds.plain_nested),
    Case("nested with batch norm", kinds.nested, workers=ALONE),
    Case("subclassed with batch norm", kinds.subclassed, workers=ALONE),
    Case("call without training", kinds.WithoutTraining),
    Case("shared layers", kinds.shared),
    Case("regularisers and a constraint", kinds.regularised),
    Case("adds a sum", kinds.adds_a_sum),
    Case("convolution with batch norm", kinds.batch_norm, workers=ALONE),
    Case("frozen layer", kinds.frozen),
    Case("unused layer", kinds.PartlyUsed, OPTIMIZERS["adamw"]),
    Case("dropout with a seed", kinds.dropout, workers=ALONE),
    Case("LSTM over masked words", kinds.recurrent, **WORDS),
    Case("GRU both ways", kinds.gated, OPTIMIZERS["adam"], **WORDS, fit_optimizer=lambda: DenseAdam(0.01)),
    Case("attention", kinds.attention, OPTIMIZERS["adam"], **WORDS, fit_optimizer=lambda: DenseAdam(0.01)),
    Case("a mask in the loss", kinds.tagger, loss=kinds.masked_loss, labels="tags", workers=ALONE, **WORDS),
    Case(
        "two inputs and outputs",
        kinds.two_inputs_and_outputs,
        loss=kinds.two_losses,
        features=BOTH,
        labels={"kind": "kind", "size": "size"},
        compiled={"loss": {"kind": kinds.loss, "size": "mse"}, "loss_weights": {"kind": 1.0, "size": 0.5}},
    ),
    Case("a loss that is a mean", loss=kinds.mean_loss),
    Case("a loss that is a sum", loss=kinds.summed_loss),
    *(Case(name, optimizer=make, workers=(3,)) for name, make in OPTIMIZERS.items()),
]


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_dtype_policy("float32")
    keras.config.set_floatx("float32")


def chosen(columns: Any, rows: slice) -> Any:
    return tf.nest.map_structure(lambda name: DATA[name][rows], columns)


def by_keras(case: Case) -> Any:
    keras.utils.set_random_seed(SEED)
    model, optimizer = case.model(), (case.fit_optimizer or case.optimizer)()
    if model.built:
        # `fit` would do it symbolically: what an optimizer copies from the weights is lost then.
        optimizer.build(model.trainable_variables)
    model.compile(optimizer, **{"loss": case.loss, **case.compiled}, jit_compile=False)
    everything = slice(None)
    model.fit(
        chosen(case.features, everything),
        chosen(case.labels, everything),
        batch_size=BATCH,
        epochs=EPOCHS,
        shuffle=False,
        verbose=0,
    )
    return model


def values_of(model: Any) -> list[np.ndarray]:
    """What the result is; seeds are ours to keep."""
    return [v.numpy() for v in model.variables if v.name != "seed_generator_state"]


def batches() -> Iterator[tuple[int, Span]]:
    step = 0
    for epoch in range(EPOCHS):
        for start in range(0, RECORDS, BATCH):
            yield step, Span(epoch, start, min(start + BATCH, RECORDS))
            step += 1


def micro_batch(case: Case, part: Span) -> MicroBatch:
    rows = slice(part.start, part.stop)
    tensors = tf.nest.map_structure(
        tf.convert_to_tensor, (chosen(case.features, rows), chosen(case.labels, rows))
    )
    return MicroBatch(*tensors, len(part))


def definition_of(case: Case) -> ModelDefinition:
    return ModelDefinition(
        path=Path("kinds.py"),
        model=case.model,
        loss=case.loss,
        optimizer=case.optimizer,
        feed=lambda dataset, mode, metadata: dataset,
    )


def new_trainer(case: Case) -> Trainer:
    trainer = Trainer(definition_of(case), SoloRing(), SEED)
    trainer.build(micro_batch(case, Span(0, 0, BATCH)))
    return trainer


def by_us(case: Case, workers: int) -> Trainer:
    """The parts of all workers, one after the other: the sum over a ring is the sum of its ranks' sums."""
    trainer = new_trainer(case)
    for step, span in batches():
        if step == LOST_AT and workers > 1:
            workers -= 1
            newcomer = new_trainer(case)
            newcomer.restore(trainer.state())
            trainer = newcomer
        parts = [micro_batch(case, own) for r in range(workers) if len(own := share(span, r, workers))]
        trainer.step(StepInput(step, parts, 0, len(span)))
    trainer.conclude()
    return trainer


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_trains_as_keras_does(case: Case) -> None:
    expected = values_of(by_keras(case))
    for workers in case.workers:
        got = values_of(by_us(case, workers).model)
        for number, (a, b) in enumerate(zip(expected, got, strict=True)):
            np.testing.assert_allclose(b, a, rtol=1e-7, atol=1e-9, err_msg=f"{number} with {workers}")


@pytest.mark.parametrize(
    "name", ["regularisers and a constraint", "subclassed with batch norm", "adds a sum"]
)
def test_an_evaluation_finds_what_keras_would(name: str, tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == name)
    model = by_keras(case)
    model.compile("sgd", loss=case.loss, metrics=["accuracy"])
    features, labels = chosen(case.features, slice(None)), chosen(case.labels, slice(None))
    expected = model.evaluate(features, labels, batch_size=BATCH, verbose=0, return_dict=True)
    for column in ("numbers", "kind"):
        np.save(tmp_path / f"{column}.npy", DATA[column])
    definition = replace(definition_of(case), feed=kinds.feed, eval_metrics=kinds.eval_metrics_fn)
    evaluator = Evaluator(definition, model, open_source(str(tmp_path)), chunk=BATCH)
    assert evaluator.conclude(evaluator.measure(range(evaluator.chunks))) == pytest.approx(expected)


@pytest.mark.parametrize(("initial_scale", "overflows"), [(2.0**15, False), (2.0**127, True)])
def test_the_scale_of_the_loss_moves_as_in_keras(initial_scale: float, overflows: bool) -> None:
    """With the larger one the first steps overflow: they are left out, and the scale is halved each time."""
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")

    def scaled() -> Any:
        return keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.01), initial_scale=initial_scale, dynamic_growth_steps=100
        )

    def large(labels: Any, predictions: Any) -> Any:
        return 12 * kinds.loss(labels, predictions)

    case = Case("scaled", kinds.functional, scaled, large)
    theirs, ours = by_keras(case), by_us(case, 3)
    assert float(ours.optimizer.dynamic_scale) == float(theirs.optimizer.dynamic_scale)
    assert int(ours.optimizer.iterations) == int(theirs.optimizer.iterations)
    assert (int(ours.optimizer.iterations) < STEPS) == overflows
    for a, b in zip(values_of(theirs), values_of(ours.model), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision_trains_as_keras_does(policy: str) -> None:
    """Half precision rounds visibly, so the bound is wide; an unscaled loss would learn nothing at all."""
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy(policy)
    case = Case(policy, kinds.sequential, OPTIMIZERS["adam"])
    theirs = by_keras(case)
    keras.utils.set_random_seed(SEED)
    first = values_of(case.model())
    for workers in (1, 3):
        ours = by_us(case, workers)
        assert isinstance(ours.optimizer, type(theirs.optimizer))
        for begun, a, b in zip(first, values_of(theirs), values_of(ours.model), strict=True):
            way = np.abs(a - begun).max()
            assert np.abs(b - a).max() < 0.2 * way, (np.abs(b - a).max(), way)
