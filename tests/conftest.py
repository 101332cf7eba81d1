"""Fixtures of more than one folder, and what `--fast` leaves out."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import cast

import numpy as np
import pytest

from edl_allreduce.testing.faults import Fault
from edl_allreduce.testing.jobs import RunningJob
from edl_allreduce.testing.warm import nursery
from edl_allreduce.worker.start.tensorflow_import import avoid_tiles

pytest_plugins = ["kubelab.pytest_plugin"]

RECORDS = 600
EPOCHS = 4
GLOBAL_BATCH = 48
STEPS = EPOCHS * -(-RECORDS // GLOBAL_BATCH)
"""Of the job that `undisturbed` knows the result of."""
ZOO = Path(__file__).resolve().parents[1] / "model_zoo"

SLOW = ("training", "tensorflow", "cluster", "controlplane", "search", "programs", "soak", "nccl", "gpu")
"""Marks of what `--fast` leaves out."""
_SLOW_FILE = re.compile(rf"^pytestmark = .*(?:\n    .*)*?\bmark\.({'|'.join(SLOW)})\b", re.MULTILINE)
STARTS_JOBS = ("launch", "undisturbed")
"""Fixtures whose users must be marked `training`."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help=f"leave out what is marked {', '.join(SLOW)}")


def pytest_configure(config: pytest.Config) -> None:
    """How wide a table is does not depend on who runs the tests: parallel runs bring a width of their own.
    TensorFlow computes here as it does in a worker.

    Who imports TensorFlow without the mark `tensorflow` fails there in a fast run, and makes nobody wait.
    """
    os.environ.pop("COLUMNS", None)
    avoid_tiles(os.environ)
    if config.getoption("--fast"):
        for heavy in ("tensorflow", "keras", "horovod"):
            sys.modules[heavy] = cast(ModuleType, None)  # import says: halted; None in sys.modules


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file that is slow as a whole is not even imported: most of them import TensorFlow."""
    if config.getoption("--fast") and collection_path.suffix == ".py":
        return _SLOW_FILE.search(collection_path.read_text()) is not None or None
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    unmarked = [
        item.nodeid
        for item in items
        if any(fixture in getattr(item, "fixturenames", ()) for fixture in STARTS_JOBS)
        and item.get_closest_marker("training") is None
    ]
    if unmarked:
        raise pytest.UsageError(f"these start jobs, so they must be marked `training`: {', '.join(unmarked)}")
    if config.getoption("--fast"):
        slow = [item for item in items if any(item.get_closest_marker(mark) for mark in SLOW)]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in set(slow)]
    if os.environ.get("PYTEST_XDIST_WORKER"):
        items.sort(key=_begins)


def _begins(item: pytest.Item) -> tuple[bool, bool, bool, float]:
    """Of several processes none shall still have a long test when the others are done: those begin first.
    Tests of a cluster are one group; those of one kind of cluster follow each other, so that it ends early.
    Of the others, whoever asks for more time than usual takes longest, and what starts no job takes next to
    none."""
    limit = item.get_closest_marker("timeout")
    return (
        item.get_closest_marker("cluster") is None,
        item.get_closest_marker("controlplane") is None,
        item.get_closest_marker("training") is None,
        -float(limit.args[0] if limit is not None else 0),
    )


@pytest.fixture(scope="session")
def digits_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some real digits as NumPy columns."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    folder = tmp_path_factory.mktemp("digits-data")
    np.save(folder / "x.npy", x[:RECORDS].astype("float32"))
    np.save(folder / "y.npy", y[:RECORDS].astype("int64"))
    return folder


@pytest.fixture(scope="session")
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


@pytest.fixture(scope="session")
def _warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[str]]:
    """`elasticdl train` whose workers find TensorFlow imported."""
    with nursery(tmp_path_factory.mktemp("nursery")) as path:
        yield "-m", "edl_allreduce.testing.warm", str(path), "train"


@pytest.fixture(scope="session")
def cold() -> Sequence[str]:
    """`elasticdl train` as a user starts it: a program for `launch` where the start of workers matters."""
    return "-m", "edl_allreduce.cli", "train"


@pytest.fixture
def launch(
    tmp_path: Path, digits_flags: dict[str, object], request: pytest.FixtureRequest
) -> Iterator[Callable[..., RunningJob]]:
    """Start jobs in this test's directory; nothing of them outlives the test."""
    jobs: list[RunningJob] = []

    def start(
        *faults: Fault,
        name: str = "job",
        job_dir: Path | None = None,
        program: Sequence[str] = (),
        **flags: object,
    ) -> RunningJob:
        directory = tmp_path / name
        directory.mkdir(exist_ok=True)  # the same job may be started again
        settings = {"job_name": name, **digits_flags, **flags}
        words = [f"--{key}={value}" for key, value in settings.items() if value is not None]
        chosen = program or request.getfixturevalue("_warm")
        job = RunningJob(directory, words, faults, program=chosen, job_dir=job_dir)
        jobs.append(job)
        return job

    yield start
    for job in jobs:
        job.end()


@pytest.fixture(scope="session")
def weights() -> Callable[[Path], list[np.ndarray]]:
    """The weights of the model in an --output directory."""

    def read(output: Path) -> list[np.ndarray]:
        import keras

        return [v.numpy() for v in keras.saving.load_model(output / "model.keras").weights]

    return read


@pytest.fixture(scope="session")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory,
    digits_flags: dict[str, object],
    weights: Callable[[Path], list[np.ndarray]],
) -> list[np.ndarray]:
    """The weights that one process comes to, to which nothing happens."""
    settings = {
        **digits_flags,
        "job_name": "undisturbed",
        "distribution_strategy": "Local",
        "minibatch_size": GLOBAL_BATCH,
        "num_epochs": EPOCHS,
    }
    words = [f"--{key}={value}" for key, value in settings.items()]
    job = RunningJob(tmp_path_factory.mktemp("undisturbed"), words)
    try:
        assert job.wait(400) == 0, job.story()
        return weights(job.output)
    finally:
        job.end()


@pytest.fixture
def nothing_was_lost(
    undisturbed: list[np.ndarray], weights: Callable[[Path], list[np.ndarray]]
) -> Callable[[RunningJob], None]:
    """The job ends well, with each record used once per epoch and the model of the undisturbed one."""

    def check(job: RunningJob) -> None:
        assert job.wait(400) == 0, job.story()
        verdict = job.audit()
        assert verdict.clean, f"{verdict}\n{job.story()}"
        assert (verdict.steps, verdict.epochs) == (STEPS, EPOCHS), verdict
        for expected, got in zip(undisturbed, weights(job.output), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)

    return check
