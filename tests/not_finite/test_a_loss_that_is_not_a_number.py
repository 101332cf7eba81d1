"""A loss that is NaN is told at once: which step, whose records; and the model is not what comes out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edl_allreduce.testing.jobs import RunningJob
from tests.same_as_keras import kinds

pytestmark = [pytest.mark.training, pytest.mark.timeout(300)]

RECORDS, BATCH = 60, 12
STEPS = RECORDS // BATCH
POISONED = 3 * BATCH - 1
"""The last record of the third step, so that of the last rank."""


@pytest.fixture
def poisoned(launch: Callable[..., RunningJob], tmp_path: Path) -> Callable[..., RunningJob]:
    folder = tmp_path / "data"
    folder.mkdir()
    random = np.random.default_rng(1)
    numbers = random.normal(size=(RECORDS, kinds.WIDTH)).astype("float32")
    numbers[POISONED, 0] = np.nan
    np.save(folder / "numbers.npy", numbers)
    np.save(folder / "kind.npy", random.integers(0, kinds.CLASSES, RECORDS))

    def start(**flags: object) -> RunningJob:
        settings = {
            "model_zoo": Path(kinds.__file__).parent,
            "model_def": "kinds.sequential",
            "training_data": folder,
            "num_workers": 2,
            "minibatch_size": BATCH // 2,
            "num_epochs": 1,
            "shuffle": "false",
        }
        return launch(**{**settings, **flags})

    return start


def test_the_job_stops_with_its_last_good_checkpoint_and_names_step_and_worker(poisoned, tmp_path):
    job = poisoned(checkpoint_dir=tmp_path / "kept")
    assert job.wait() == 1
    assert "Failed: the loss of step 3 is not finite (NaN or infinite), from the records of" in job.stdout()
    assert not (job.output / "model.keras").exists()
    assert [path.name for path in (tmp_path / "kept").glob("version-*")] == ["version-2"]
    first = POISONED - BATCH // 2 + 1
    assert f"the loss of these records is nan: [{first}, " in job.log(0) + job.log(1)


def test_such_updates_can_be_left_out(poisoned, weights):
    job = poisoned(on_nan="skip")
    assert job.wait() == 0, job.story()
    job.wait_for("nan", "the loss of step 3 is not finite", again=True)
    assert f"Succeeded: {STEPS} steps; in 1 of {STEPS} steps the loss was not finite" in job.stdout()
    assert all(np.isfinite(w).all() for w in weights(job.output))


def test_whoever_trains_on_is_told_how_often_it_happened(poisoned):
    job = poisoned(on_nan="continue", distribution_strategy="Local", minibatch_size=BATCH)
    assert job.wait() == 0, job.story()
    assert f"in {STEPS - 2} of {STEPS} steps the loss was not finite" in job.stdout()


def test_alone_the_job_fails_in_the_same_words(poisoned):
    job = poisoned(distribution_strategy="Local", minibatch_size=BATCH)
    assert job.wait() == 1
    assert "the loss of step 3 is not finite" in job.stdout().splitlines()[-1]
