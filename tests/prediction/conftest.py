"""Jobs that use a checkpoint which no training job had to write first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl_allreduce.testing.faults import Fault
from edl_allreduce.testing.jobs import RunningJob
from edl_allreduce.worker.checkpoint.format import JobIdentity
from edl_allreduce.worker.checkpoint.writer import Checkpoints
from edl_allreduce.worker.loop.journal import Journal

ZOO = Path(__file__).resolve().parents[2] / "model_zoo"
RECORDS = 401
STEP = 7

StartJob = Callable[..., RunningJob]


@dataclass(frozen=True)
class Trained:
    """A model, its checkpoint, and data for it."""

    model: Any
    checkpoints: Path
    data: Path
    x: np.ndarray
    y: np.ndarray


class _Holder:
    def __init__(self, model: Any) -> None:
        self.model = model

    def state(self) -> list[np.ndarray]:
        return [v.numpy() for v in self.model.variables]

    def names(self) -> tuple[list[str], list[str]]:
        return [v.path for v in self.model.variables], []


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    import keras
    from sklearn.datasets import load_digits

    folder = tmp_path_factory.mktemp("trained")
    x, y = load_digits(return_X_y=True)
    x, y = x[:RECORDS].astype("float32"), y[:RECORDS].astype("int64")
    (folder / "data").mkdir()
    np.save(folder / "data" / "x.npy", x)
    np.save(folder / "data" / "y.npy", y)
    keras.utils.set_random_seed(4)
    model = keras.Sequential(
        [
            keras.layers.Input((64,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    course = JobIdentity("digits", 0, True, RECORDS, "f" * 16)
    keeper = Checkpoints(
        str(folder / "checkpoints"), _Holder(model), course, every=1, keep=0, send=lambda message: None
    )
    keeper.save(STEP, 0, Journal())
    keeper.flush()
    return Trained(model, folder / "checkpoints", folder / "data", x / 16.0, y)


@pytest.fixture
def start_job(tmp_path: Path, trained: Trained) -> Iterator[StartJob]:
    jobs: list[RunningJob] = []

    def start(command: str, *faults: Fault, **flags: object) -> RunningJob:
        settings = {
            "job_name": "digits",
            "model_zoo": ZOO,
            "model_def": "digits.mlp.custom_model",
            "checkpoint_dir_for_init": trained.checkpoints,
            "num_workers": 2,
            "minibatch_size": 32,
            "num_minibatches_per_task": 2,
            "failure_detection_seconds": 20,  # none of these tests waits for a silent worker
            **flags,
        }
        arguments: Sequence[str] = [f"--{k}={v}" for k, v in settings.items()]
        job = RunningJob(tmp_path, arguments, faults, program=("-m", "edl_allreduce.cli", command))
        jobs.append(job)
        return job

    yield start
    for job in jobs:
        job.end()
