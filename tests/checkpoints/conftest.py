"""Small jobs on real digits that are ended and started again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from edl_allreduce.testing.faults import Fault
from edl_allreduce.testing.jobs import RunningJob

ZOO = Path(__file__).resolve().parents[2] / "model_zoo"
RECORDS = 600
EPOCHS = 4
GLOBAL_BATCH = 48
STEPS = EPOCHS * -(-RECORDS // GLOBAL_BATCH)

StartJob = Callable[..., RunningJob]


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    folder = tmp_path_factory.mktemp("digits")
    np.save(folder / "x.npy", x[:RECORDS].astype("float32"))
    np.save(folder / "y.npy", y[:RECORDS].astype("int64"))
    return folder


def arguments(digits: Path, directory: Path, workers: int, **flags: object) -> list[str]:
    settings = {
        "job_name": "digits",
        "model_zoo": ZOO,
        "model_def": "digits.mlp.custom_model",
        "training_data": digits,
        "num_workers": workers,
        "minibatch_size": GLOBAL_BATCH // workers,
        "num_epochs": EPOCHS,
        "checkpoint_dir": directory / "checkpoints",
        "failure_detection_seconds": 20,  # none of these tests waits for a silent worker
        "cool_down_seconds": 60,  # begin with all, however slowly one starts
        **flags,
    }
    return [f"--{k}={v}" for k, v in settings.items()]


@pytest.fixture
def start_job(tmp_path: Path, digits: Path) -> Iterator[StartJob]:
    jobs: list[RunningJob] = []

    def start(*faults: Fault, workers: int = 2, **flags: object) -> RunningJob:
        """The same job, started as often as this is called."""
        job = RunningJob(tmp_path, arguments(digits, tmp_path, workers, **flags), faults)
        jobs.append(job)
        return job

    yield start
    for job in jobs:
        job.end()


def weights(job: RunningJob) -> list[np.ndarray]:
    import keras

    model = keras.saving.load_model(job.output / "model.keras")
    return [v.numpy() for v in model.weights]


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, digits: Path) -> list[np.ndarray]:
    """The weights of the same job in one process, never ended."""
    directory = tmp_path_factory.mktemp("undisturbed")
    job = RunningJob(directory, arguments(digits, directory, 1, distribution_strategy="Local"))
    try:
        assert job.wait(400) == 0, job.story()
        return weights(job)
    finally:
        job.end()


@pytest.fixture
def same_result(undisturbed: list[np.ndarray]) -> Callable[[RunningJob], None]:
    """The job ended as if it had never been interrupted."""

    def check(job: RunningJob) -> None:
        assert job.wait(400) == 0, job.story()
        verdict = job.audit()
        assert verdict.clean, f"{verdict}\n{job.story()}"
        assert (verdict.steps, verdict.epochs) == (STEPS, EPOCHS), verdict
        for expected, got in zip(undisturbed, weights(job), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)

    return check
