"""Callbacks of a model file in the real loop, in one process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edl_allreduce.core.protocol import Plan, Seat
from edl_allreduce.spec import parse_job
from edl_allreduce.worker.loop.diary import audit

pytestmark = pytest.mark.training

ZOO = Path(__file__).resolve().parents[2] / "model_zoo"

MODEL = """
import sys
sys.path.insert(0, {zoo!r})
import keras
from digits.mlp import custom_model, eval_metrics_fn, feed, loss
from elasticdl.python.elasticdl.callbacks import LearningRateScheduler, MaxStepsStopping

def optimizer():
    return keras.optimizers.SGD(7.0)

def callbacks():
    return {callbacks}
"""


@pytest.fixture
def run(tmp_path, digits):
    """Train with these callbacks; the engine tells how far it came."""

    def train(name: str, callbacks: str, **flags):
        from edl_allreduce.worker.lone import LoneMaster
        from edl_allreduce.worker.ring.solo import SoloRing
        from edl_allreduce.worker.start.session import prepare_alone

        (tmp_path / f"{name}.py").write_text(MODEL.format(zoo=str(ZOO), callbacks=callbacks))
        settings = {
            "job_name": "callbacks",
            "distribution_strategy": "Local",
            "model_zoo": tmp_path,
            "model_def": f"{name}.custom_model",
            "training_data": digits / "train",
            "validation_data": digits / "test",
            "evaluation_steps": 2,
            "minibatch_size": 64,
            "num_epochs": 2,
            "audit_dir": tmp_path / "audit",
            **flags,
        }
        spec = parse_job("train", [f"--{key}={value}" for key, value in settings.items()]).spec
        lone = LoneMaster(Plan(1, (Seat("local", 0, "127.0.0.1"),)), rank=0)
        engine = prepare_alone(spec, lone.attendant(), SoloRing())
        engine.run()
        verdict = audit(str(settings["audit_dir"]))
        assert verdict.clean, verdict
        return engine

    return train


STALLED = "[LearningRateScheduler(lambda batch: 0.0), keras.callbacks.EarlyStopping('val_loss', patience=2)]"


def test_training_that_does_not_improve_is_stopped_early_and_stays_stopped(run, tmp_path):
    """Evaluations after 2, 4 and 6 steps; the first is the best."""
    engine = run("stalled", STALLED, checkpoint_dir=tmp_path / "ckpt")
    assert engine.state.step == 6
    assert "val_loss has not improved in 2 evaluations" in engine.state.journal.halted
    again = run("stalled", STALLED, checkpoint_dir=tmp_path / "ckpt")
    assert again.state.step == 6, "what was over stays over"


WORSE_AFTER_FOUR = """[
    LearningRateScheduler(lambda batch: 0.05 if batch < 4 else -0.05),
    keras.callbacks.EarlyStopping('val_loss', patience=2, restore_best_weights=True),
]"""


def test_the_best_weights_are_the_result_also_when_the_best_was_before_a_restart(run, tmp_path, weights):
    best = {"output": tmp_path / "best", "audit_dir": tmp_path / "other", "max_step": 4}
    run("descends", "[LearningRateScheduler(lambda batch: 0.05)]", **best)
    kept = {"output": tmp_path / "output", "checkpoint_dir": tmp_path / "ckpt"}
    assert run("climbs", WORSE_AFTER_FOUR, **kept, max_step=6).state.step == 6
    assert run("climbs", WORSE_AFTER_FOUR, **kept).state.step == 8, "6 and 8 were worse than 4"
    for expected, got in zip(weights(tmp_path / "best"), weights(tmp_path / "output"), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_the_learning_rate_and_the_last_step_come_from_callbacks(run):
    engine = run("scheduled", "[LearningRateScheduler(lambda batch: 0.5 / (1 + batch)), MaxStepsStopping(5)]")
    assert engine.state.step == 5
    assert float(engine.trainer.optimizer.learning_rate) == pytest.approx(0.1)
