"""Peer: data-parallel training in a fixed ring, written as Horovod's own TensorFlow 2 example."""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from benchmarks.marks import Marker
from benchmarks.programs import common


def main() -> None:
    flags = common.arguments().parse_args()
    common.set_threads(flags.threads)
    hvd.init()
    zoo = common.model_file(flags.model)
    model, optimizer = zoo.custom_model(), zoo.optimizer()
    variables = [v.value for v in model.trainable_variables]  # Horovod does not know Keras 3 variables
    optimizer.build(model.trainable_variables)

    @tf.function  # type: ignore[untyped-decorator]
    def train(features: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(zoo.loss(labels, model(features, training=True)))
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    hvd.broadcast_variables([v.value for v in [*model.variables, *optimizer.variables]], root_rank=0)
    data = common.batches(zoo, flags.data, flags.batch, seed=hvd.rank())
    marker = Marker(flags.marks)
    for step in range(flags.steps):
        features, labels = next(data)
        train(features, labels)
        marker.mark(step, hvd.size())
    hvd.shutdown()


if __name__ == "__main__":
    main()
