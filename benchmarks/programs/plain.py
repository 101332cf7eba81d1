"""Peer: one process, no ring, Keras' own loop on the whole batch."""

from __future__ import annotations

from typing import Any

import keras

from benchmarks.marks import Marker
from benchmarks.programs import common


def main() -> None:
    flags = common.arguments().parse_args()
    common.set_threads(flags.threads)
    zoo = common.model_file(flags.model)
    model = zoo.custom_model()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=zoo.optimizer(), loss=loss)
    marker = Marker(flags.marks)

    class Mark(keras.callbacks.Callback):  # type: ignore[misc]  # keras is untyped
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            marker.mark(batch, 1)

    data = common.dataset(zoo, flags.data, flags.batch, seed=0)
    model.fit(data, steps_per_epoch=flags.steps, epochs=1, verbose=0, callbacks=[Mark()])


if __name__ == "__main__":
    main()
