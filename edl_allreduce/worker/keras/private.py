"""What we use of TensorFlow and Keras although it is not public, each in one place.

Tried with TensorFlow 2.21, the version that `pyproject.toml` names, and the Keras 3 that comes with it; the
tests of `tests/training` break where one of them is gone. What is private to Horovod is in `ring/library.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras.src.backend.common.global_state import get_global_attribute
from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR


def global_seed_generator() -> Any:
    """What random operations draw from that were given no seed; None as long as there was none."""
    return get_global_attribute(GLOBAL_SEED_GENERATOR)


def converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """A user's function whose `if` and `for` may depend on tensors.

    AutoGraph rewrites a function and everything that it calls, a logger included; left to itself it took most
    of a worker's preparation. Our graphs are traced with `autograph=False` and call users' functions through
    this, so that it goes through their code and none of ours.
    """
    autograph = tf.__internal__.autograph
    made: Callable[..., Any] = autograph.tf_convert(function, autograph.control_status_ctx())
    return made


def compiled_loss(model: Any) -> Callable[..., Any] | None:
    """What `compile` made of a model's loss: called with (labels, outputs, sample weights). `compute_loss`
    is public, but adds what layers add, which counts differently."""
    found: Callable[..., Any] | None = model._compile_loss
    return found


def loss_counters(model: Any) -> list[Any]:
    """The metrics in which a compiled loss counts the loss of each of several outputs."""
    return list(model._compile_loss.metrics) if model._compile_loss is not None else []


def build_compiled(model: Any, batch: tuple[Any, Any, Any]) -> None:
    """Make all variables of a compiled model, as `fit` does first: layers, loss, metrics, optimizer."""
    model._symbolic_build(data_batch=batch)


def choose_direction(callback: Any) -> None:
    """A callback that monitors a metric decides at the first one whether more is better, and turns the sign
    of a setting then; done before, its settings mean the same on all workers."""
    if getattr(callback, "monitor_op", callback) is None:
        callback._set_monitor_op()


class Traced:
    """A function traced for one signature, called with its tensors in a row.

    Calling a tf.function binds, checks and looks up its arguments anew each time; with a dozen tensors that
    takes longer than a small step's arithmetic. Here it is done once (`call_flat` is what a concrete function
    calls in the end), so callers must know what they pass.
    """

    def __init__(self, graph: Callable[..., Any], signature: list[Any]) -> None:
        traced = tf.function(graph, input_signature=signature, autograph=False)
        self._traced = traced.get_concrete_function()
        self._call = self._traced.inference_fn.call_flat
        self._captures = self._traced.captured_inputs

    def __call__(self, *tensors: Any) -> Any:
        """The outputs in a row."""
        return self._call(*tensors, *self._captures)

    @property
    def graph(self) -> Any:
        """What was traced."""
        return self._traced.graph
