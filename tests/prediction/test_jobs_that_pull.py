"""evaluate and predict as jobs whose workers die."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from edl_allreduce.testing.faults import Fault
from edl_allreduce.testing.jobs import RunningJob

ZOO = Path(__file__).resolve().parents[2] / "model_zoo"

pytestmark = [pytest.mark.training, pytest.mark.timeout(900)]


def predictions(job: RunningJob) -> np.ndarray:
    index = json.loads((job.output / "predictions.json").read_text())
    assert sorted(p.name for p in job.output.iterdir()) == sorted([*index["files"], "predictions.json"])
    return np.concatenate([np.load(job.output / name) for name in index["files"]])


def test_predictions_are_complete_and_in_order_although_workers_die(start_job, trained):
    job = start_job(
        "predict",
        Fault("task", "kill", {"task": 1, "attempt": 1, "done": 1}),
        Fault("task", "kill", {"task": 4, "attempt": 1, "done": 0}),
        prediction_data=trained.data,
    )
    assert job.wait(600) == 0, job.story()
    assert len(job.fired()) == 2
    expected = trained.model.predict_on_batch(trained.x)
    np.testing.assert_allclose(predictions(job), expected, rtol=1e-4, atol=1e-4)
    assert f"The predictions are in {job.output}" in job.stdout()


def test_predictions_of_another_run_are_refused_at_the_start_or_replaced_as_a_whole(start_job, trained):
    def predict(**flags: object) -> RunningJob:
        return start_job("predict", prediction_data=trained.data, distribution_strategy="Local", **flags)

    output = trained.data.parent / "mixed"
    output.mkdir()
    (output / "predictions-000009.npy").write_bytes(b"of another run")
    refused = predict(output=output)
    assert refused.wait(60) == 2 and "holds the predictions of another run" in refused.stdout()
    assert [path.name for path in output.iterdir()] == ["predictions-000009.npy"]
    replaced = predict(output=output, overwrite="true")
    assert replaced.wait(400) == 0, replaced.story()
    index = json.loads((output / "predictions.json").read_text())
    assert sorted(p.name for p in output.iterdir()) == sorted([*index["files"], "predictions.json"])


def test_metrics_are_exact_although_a_worker_dies(start_job, trained):
    job = start_job(
        "evaluate",
        Fault("task", "kill", {"task": 2, "attempt": 1, "done": 1}),
        validation_data=trained.data,
    )
    assert job.wait(600) == 0, job.story()
    assert len(job.fired()) == 1
    assert any(e.kind == "redo" for e in job.events())
    (event,) = [e for e in job.events() if e.kind == "evaluation"]
    right = np.argmax(trained.model.predict_on_batch(trained.x), 1) == trained.y
    assert f"Evaluation metrics[step=7]: {{'accuracy': {right.mean():.6g}, 'loss': " in event.text


PROCESSOR = """
import sys
sys.path.insert(0, {zoo!r})
from digits.mlp import *
from elasticdl.python.worker.prediction_outputs_processor import BasePredictionOutputsProcessor


class PredictionOutputsProcessor(BasePredictionOutputsProcessor):
    def process(self, predictions, worker_id):
        with open({out!r}, "a") as file:
            file.writelines(f"{{worker_id}} {{row.argmax()}}\\n" for row in predictions)
"""


def test_predictions_go_through_the_processor(start_job, trained, tmp_path):
    zoo = tmp_path / "zoo"
    zoo.mkdir()
    out = tmp_path / "processed"
    (zoo / "mine.py").write_text(PROCESSOR.format(zoo=str(ZOO), out=str(out)))
    job = start_job(
        "predict",
        prediction_data=trained.data,
        model_zoo=zoo,
        model_def="mine.custom_model",
        distribution_strategy="Local",
        output="",
    )
    assert job.wait(600) == 0, job.story()
    expected = np.argmax(trained.model.predict_on_batch(trained.x), 1)
    assert out.read_text().splitlines() == [f"0 {digit}" for digit in expected]
    assert not Path(job.output).exists()
