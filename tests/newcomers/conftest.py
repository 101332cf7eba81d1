"""Jobs of two workers on a zoo and data of their own, which a test may spoil while they train."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edl_allreduce.testing.faults import Fault
from edl_allreduce.testing.jobs import RunningJob

HOLD_AT = 12
"""The step before which all ranks wait until the test has done its worst."""
MODEL = """
import keras
import tensorflow as tf

from parts import WIDTH

def custom_model():
    return keras.Sequential([
        keras.Input((64,)), keras.layers.Dense(WIDTH, "relu"), keras.layers.Dense(10),
    ])

def loss(labels, predictions):
    return keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)

def optimizer():
    return keras.optimizers.SGD(0.1)

def feed(dataset, mode, metadata):
    def parse(line):
        fields = tf.strings.to_number(tf.strings.split(line, ","), tf.float32)
        fields = tf.ensure_shape(fields, [65])
        return fields[1:] / 16.0, tf.cast(fields[0], tf.int64)
    return dataset.map(parse)
"""


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    """A model file and a file that it imports."""
    folder = tmp_path / "zoo"
    folder.mkdir()
    (folder / "net.py").write_text(MODEL)
    (folder / "parts.py").write_text("WIDTH = 24\n")
    return folder


@pytest.fixture
def lines(tmp_path: Path, digits_data: Path) -> Path:
    """Digits as lines of text."""
    folder = tmp_path / "data"
    folder.mkdir()
    x, y = np.load(digits_data / "x.npy"), np.load(digits_data / "y.npy")
    rows = [",".join(map(str, [label, *map(int, pixels)])) for label, pixels in zip(y, x, strict=True)]
    (folder / "digits.csv").write_text("\n".join(rows[:300]) + "\n")
    return folder


@pytest.fixture
def train(launch: Callable[..., RunningJob], zoo: Path, lines: Path) -> Callable[..., RunningJob]:
    """A job of two workers that waits before step 12 until it is released."""

    def start(**flags: object) -> RunningJob:
        settings: dict[str, object] = {
            "model_zoo": zoo,
            "model_def": "net.custom_model",
            "training_data": lines,
            "num_workers": 2,
            "minibatch_size": 10,
            "num_epochs": 4,
            "failure_detection_seconds": 5,
            **flags,
        }
        job = launch(Fault("compute", "hold", {"step": HOLD_AT}, repeat=True), **settings)
        job.wait_fired(2)
        return job

    return start


@pytest.fixture
def lose_one() -> Callable[[RunningJob], None]:
    """Kill a worker, so that a newcomer is needed."""

    def kill(job: RunningJob) -> None:
        job.signal(1, signal.SIGKILL)

    return kill


@pytest.fixture
def ended_well() -> Callable[[RunningJob], None]:
    """Each record was used once per epoch, and there is a model."""

    def check(job: RunningJob) -> None:
        assert job.wait() == 0, job.story()
        verdict = job.audit()
        assert verdict.clean and verdict.epochs == 4, f"{verdict}\n{job.story()}"
        assert (job.output / "model.keras").is_file()

    return check
