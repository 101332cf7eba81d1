"""Fixtures of more than one folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from edl_allreduce.testing.faults import Fault
from edl_allreduce.testing.jobs import RunningJob

pytest_plugins = ["kubelab.pytest_plugin"]

RECORDS = 600
ZOO = Path(__file__).resolve().parents[1] / "model_zoo"


@pytest.fixture(scope="session")
def digits_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some real digits as NumPy columns."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    folder = tmp_path_factory.mktemp("digits-data")
    np.save(folder / "x.npy", x[:RECORDS].astype("float32"))
    np.save(folder / "y.npy", y[:RECORDS].astype("int64"))
    return folder


@pytest.fixture
def digits_flags(digits_data: Path) -> dict[str, object]:
    """A small job on them; two workers take a second of training."""
    return {
        "model_zoo": ZOO,
        "model_def": "digits.mlp.custom_model",
        "training_data": digits_data,
        "minibatch_size": 16,
        "num_epochs": 2,
        "failure_detection_seconds": 20,  # what dies is noticed at once; a busy machine is no failure
        "cool_down_seconds": 60,  # begin with all of them, however slowly one starts
    }


@pytest.fixture
def launch(tmp_path: Path, digits_flags: dict[str, object]) -> Iterator[Callable[..., RunningJob]]:
    """Start jobs in this test's directory; nothing of them outlives the test."""
    jobs: list[RunningJob] = []

    def start(
        *faults: Fault,
        name: str = "job",
        job_dir: Path | None = None,
        program: Sequence[str] = ("-m", "edl_allreduce.cli", "train"),
        **flags: object,
    ) -> RunningJob:
        directory = tmp_path / name
        directory.mkdir()
        settings = {"job_name": name, **digits_flags, **flags}
        words = [f"--{key}={value}" for key, value in settings.items() if value is not None]
        job = RunningJob(directory, words, faults, program=program, job_dir=job_dir)
        jobs.append(job)
        return job

    yield start
    for job in jobs:
        job.end()


@pytest.fixture
def weights() -> Callable[[Path], list[np.ndarray]]:
    """The weights of the model in an --output directory."""

    def read(output: Path) -> list[np.ndarray]:
        import keras

        return [v.numpy() for v in keras.saving.load_model(output / "model.keras").weights]

    return read
