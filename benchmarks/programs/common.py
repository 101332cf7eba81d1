"""Model, records and threads of a peer: the same as ours gets."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

BUFFER = 16 * 1024
"""As many records as our shuffle mixes."""


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--batch", type=int, required=True, help="of this process")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--marks", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1)
    return parser


def set_threads(threads: int) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(max(2, threads))


def model_file(name: str) -> ModuleType:
    return importlib.import_module(f"benchmarks.zoo.{name}")


def compiled(flags: argparse.Namespace) -> Any:
    """The model for Keras' own loop."""
    set_threads(flags.threads)
    zoo = model_file(flags.model)
    model = zoo.custom_model()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=zoo.optimizer(), loss=loss)
    return model


def dataset(zoo: ModuleType, data: Path, batch: int, seed: int) -> Any:
    """Shuffled, parsed, batched, read ahead, without end."""
    columns = {name: np.load(data / f"{name}.npy") for name in ("x", "y")}
    records = tf.data.Dataset.from_tensor_slices(columns).repeat().shuffle(BUFFER, seed=seed)
    return zoo.feed(records, None, None).batch(batch, drop_remainder=True).prefetch(4)


def batches(zoo: ModuleType, data: Path, batch: int, seed: int) -> Iterator[tuple[Any, Any]]:
    return iter(dataset(zoo, data, batch, seed))
