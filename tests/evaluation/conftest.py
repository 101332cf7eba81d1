"""Small jobs on real digits with a part kept for validation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from edl_allreduce.testing.faults import Fault
from edl_allreduce.testing.jobs import RunningJob

ZOO = Path(__file__).resolve().parents[2] / "model_zoo"

StartJob = Callable[..., RunningJob]


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`train` with 600 records, `test` with 401."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    folder = tmp_path_factory.mktemp("digits")
    for name, part in (("train", slice(600)), ("test", slice(600, 1001))):
        (folder / name).mkdir()
        np.save(folder / name / "x.npy", x[part].astype("float32"))
        np.save(folder / name / "y.npy", y[part].astype("int64"))
    return folder


@pytest.fixture
def start_job(tmp_path: Path, digits: Path) -> Iterator[StartJob]:
    jobs: list[RunningJob] = []

    def start(*faults: Fault, name: str = "job", workers: int = 2, **flags: object) -> RunningJob:
        directory = tmp_path / name
        directory.mkdir()
        settings = {
            "job_name": name,
            "model_zoo": ZOO,
            "model_def": "digits.mlp.custom_model",
            "training_data": digits / "train",
            "validation_data": digits / "test",
            "num_workers": workers,
            "minibatch_size": 48 // workers,
            "num_epochs": 4,
            "evaluation_steps": 20,
            "failure_detection_seconds": 20,  # none of these tests waits for a silent worker
            "cool_down_seconds": 60,  # begin with all, however slowly one starts
            **flags,
        }
        job = RunningJob(directory, [f"--{k}={v}" for k, v in settings.items()], faults)
        jobs.append(job)
        return job

    yield start
    for job in jobs:
        job.end()
