"""Jobs of three real workers on real digits, with faults."""

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
WORKERS = 3
MINIBATCH = 16
STEPS = EPOCHS * -(-RECORDS // (MINIBATCH * WORKERS))

StartJob = Callable[..., RunningJob]


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    folder = tmp_path_factory.mktemp("digits")
    np.save(folder / "x.npy", x[:RECORDS].astype("float32"))
    np.save(folder / "y.npy", y[:RECORDS].astype("int64"))
    return folder


@pytest.fixture
def start_job(tmp_path: Path, digits: Path) -> Iterator[StartJob]:
    jobs: list[RunningJob] = []

    def start(*faults: Fault, name: str = "job", workers: int = WORKERS, **flags: object) -> RunningJob:
        directory = tmp_path / name
        directory.mkdir()
        settings = {
            "job_name": name,
            "model_zoo": ZOO,
            "model_def": "digits.mlp.custom_model",
            "training_data": digits,
            "num_workers": workers,
            "minibatch_size": MINIBATCH,
            "num_epochs": EPOCHS,
            "log_loss_steps": 10,
            "failure_detection_seconds": 5,
            "cool_down_seconds": 60,  # begin with all three, however slowly one starts
            **flags,
        }
        job = RunningJob(directory, [f"--{k}={v}" for k, v in settings.items()], faults)
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
    """The weights of the same job when nothing happens to it."""
    directory = tmp_path_factory.mktemp("undisturbed")
    arguments = [
        "--job_name=undisturbed", f"--model_zoo={ZOO}", "--model_def=digits.mlp.custom_model",
        f"--training_data={digits}", f"--num_workers={WORKERS}", f"--minibatch_size={MINIBATCH}",
        f"--num_epochs={EPOCHS}",
    ]  # fmt: skip
    job = RunningJob(directory, arguments)
    try:
        assert job.wait() == 0, job.story()
        verdict = job.audit()
        assert verdict.clean and verdict.steps == STEPS, verdict
        return weights(job)
    finally:
        job.end()


@pytest.fixture
def nothing_was_lost(undisturbed: list[np.ndarray]) -> Callable[[RunningJob], None]:
    """The four promises, checked on a job that ended."""

    def check(job: RunningJob) -> None:
        assert job.wait() == 0, job.story()
        verdict = job.audit()
        assert verdict.clean, f"{verdict}\n{job.story()}"
        assert (verdict.steps, verdict.epochs) == (STEPS, EPOCHS), verdict
        for expected, got in zip(undisturbed, weights(job), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)

    return check
