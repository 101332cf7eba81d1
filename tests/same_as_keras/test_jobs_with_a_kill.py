"""Real jobs: three workers, one of them killed in the middle, and the model that `fit` gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from edl_allreduce.testing.faults import Fault
from edl_allreduce.testing.jobs import RunningJob
from edl_allreduce.worker.checkpoint.shelf import DiskShelf, newest
from tests.same_as_keras import kinds
from tests.same_as_keras.test_every_kind_of_model import BATCH, DATA, EPOCHS, STEPS

pytestmark = [pytest.mark.training, pytest.mark.timeout(600)]

WORKERS = 3
KILLED_AT = 3


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("numbers", "words", "kind"):
        column = DATA[name]
        np.save(folder / f"{name}.npy", column.astype("float32") if name == "numbers" else column)
    return folder


@pytest.fixture
def train(launch: Callable[..., RunningJob], data: Path) -> Callable[..., RunningJob]:
    def start(*faults: Fault, **flags: object) -> RunningJob:
        return launch(
            *faults,
            **{
                "model_zoo": Path(kinds.__file__).parent,
                "training_data": data,
                "minibatch_size": BATCH // WORKERS,
                "num_workers": WORKERS,
                "num_epochs": EPOCHS,
                "shuffle": "false",
                "seed": 5,
                **flags,
            },
        )

    return start


def by_keras(model: Any, features: str) -> list[np.ndarray]:
    keras.utils.set_random_seed(5)
    made = model()
    made.compile(kinds.optimizer(), loss=kinds.loss, jit_compile=False)
    x = DATA[features]
    x = x.astype("float32") if features == "numbers" else x
    made.fit(x, DATA["kind"], batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0)
    return [v.numpy() for v in made.weights]


@pytest.mark.parametrize(
    ("model", "features", "feed"),
    [
        ("sequential", "numbers", "feed"),
        ("recurrent", "words", "feed_words"),
        ("vocabulary", "words", "feed_words"),
    ],
)
def test_the_model_is_that_of_fit(train, weights, model, features, feed):
    job = train(
        Fault("compute", "kill", {"rank": 1, "step": KILLED_AT}), model_def=f"kinds.{model}", feed=feed
    )
    assert job.wait(300) == 0, job.story()
    assert len(job.fired()) == 1
    assert ("sent in rows: " in job.log(0)) == (model == "vocabulary")
    verdict = job.audit()
    assert verdict.clean and verdict.steps == STEPS, verdict
    for a, b in zip(by_keras(getattr(kinds, model), features), weights(job.output), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-3, atol=1e-4)


def test_batch_normalisation_of_a_subclassed_model_learns_its_averages(train, tmp_path):
    """What is normalised per part of a batch differs from `fit`; that it is done at all must not."""
    job = train(model_def="kinds.Subclassed", checkpoint_dir=tmp_path / "kept", num_workers=2)
    assert job.wait(300) == 0, job.story()
    values = saved(tmp_path / "kept")
    assert np.abs(values["subclassed/batch_normalization/moving_mean"]).max() > 0.01, values.keys()


def saved(directory: Path) -> dict[str, np.ndarray]:
    """The newest checkpoint's variables by their names."""
    loaded, _ = newest(DiskShelf(directory))
    assert loaded is not None
    variables = [*loaded.contents.model, *loaded.contents.optimizer]
    return {v.path: array for v, array in zip(variables, loaded.arrays, strict=True)}


def test_half_precision_survives_a_kill_and_a_resume(train, tmp_path):
    """The scale of the loss is part of the state: it goes to newcomers and into checkpoints."""
    flags = {"model_def": "kinds.sequential", "mixed_precision": "mixed_float16"}
    kill = Fault("compute", "kill", {"rank": 1, "step": KILLED_AT})
    for last in (STEPS // 2 + 1, 0):
        faults = [kill] if last else []
        job = train(*faults, **flags, max_step=last, checkpoint_dir=tmp_path / "kept")
        assert job.wait(300) == 0, job.story()
        assert len(job.fired()) == 1
    alone = train(
        **flags,
        name="alone",
        distribution_strategy="Local",
        minibatch_size=BATCH,
        checkpoint_dir=tmp_path / "alone",
    )
    assert alone.wait(300) == 0, alone.story()
    ours, expected = saved(tmp_path / "kept"), saved(tmp_path / "alone")
    assert {"loss_scale_optimizer/dynamic_scale", "loss_scale_optimizer/step_counter"} <= ours.keys()
    assert ours["loss_scale_optimizer/step_counter"] == expected["loss_scale_optimizer/step_counter"] == STEPS
    for name, value in expected.items():
        np.testing.assert_allclose(ours[name], value, rtol=0.05, atol=0.01, err_msg=name)
