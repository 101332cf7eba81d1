"""Peer: Keras' own loop in one process, which saves model and optimizer between steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras

from benchmarks.marks import Marker
from benchmarks.programs import common


def main() -> None:
    parser = common.arguments()
    parser.add_argument("--every", type=int, required=True)
    parser.add_argument("--saved", type=Path, required=True)
    flags = parser.parse_args()
    model = common.compiled(flags)
    marker = Marker(flags.marks)

    class Save(keras.callbacks.Callback):  # type: ignore[misc]  # keras is untyped
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            marker.mark(batch + 1, 1)
            if (batch + 1) % flags.every == 0:
                self.model.save(flags.saved)

    data = common.dataset(common.model_file(flags.model), flags.data, flags.batch, seed=0)
    model.fit(data, steps_per_epoch=flags.steps, epochs=1, verbose=0, callbacks=[Save()])


if __name__ == "__main__":
    main()
