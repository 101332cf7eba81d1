"""Peer: Horovod Elastic. State is committed every N steps; a failure goes back to the last commit.

Horovod's Keras state expects Keras 2: `Shim` gives it what it asks for.
"""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from benchmarks.marks import Marker
from benchmarks.programs import common


class Shim:
    """A Keras 3 model or optimizer with the variables that Horovod can copy and broadcast."""

    def __init__(self, variables: list[Any]) -> None:
        self._variables = variables

    @property
    def variables(self) -> Any:
        return self._variables


class OptimizerShim(Shim):
    @property
    def variables(self) -> Any:
        return lambda: self._variables  # a method in Keras 2


def main() -> None:
    parser = common.arguments()
    parser.add_argument("--commit_every", type=int, default=1)
    flags = parser.parse_args()
    common.set_threads(flags.threads)
    hvd.init()
    zoo = common.model_file(flags.model)
    model, optimizer = zoo.custom_model(), zoo.optimizer()
    variables = [v.value for v in model.trainable_variables]
    optimizer.build(model.trainable_variables)

    @tf.function  # type: ignore[untyped-decorator]
    def train(features: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(zoo.loss(labels, model(features, training=True)))
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    marker = Marker(flags.marks)
    data = common.batches(zoo, flags.data, flags.batch, seed=hvd.rank())

    @hvd.elastic.run  # type: ignore[untyped-decorator]
    def loop(state: Any) -> None:
        while state.step < flags.steps:
            features, labels = next(data)
            train(features, labels)
            marker.mark(state.step, hvd.size())
            state.step += 1
            if state.step % flags.commit_every == 0:
                state.commit()

    loop(
        hvd.elastic.TensorFlowKerasState(
            Shim([v.value for v in model.variables]),
            OptimizerShim([v.value for v in optimizer.variables]),
            step=0,
        )
    )


if __name__ == "__main__":
    main()
