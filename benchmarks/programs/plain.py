"""Peer: one process, no ring, Keras' own loop on the whole batch."""

from __future__ import annotations

from typing import Any

import keras

from benchmarks.marks import Marker
from benchmarks.programs import common


def main() -> None:
    flags = common.arguments().parse_args()
    model = common.compiled(flags)
    marker = Marker(flags.marks)

    class Mark(keras.callbacks.Callback):  # type: ignore[misc]  # keras is untyped
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            marker.mark(batch, 1)

    data = common.dataset(common.model_file(flags.model), flags.data, flags.batch, seed=0)
    model.fit(data, steps_per_epoch=flags.steps, epochs=1, verbose=0, callbacks=[Mark()])


if __name__ == "__main__":
    main()
