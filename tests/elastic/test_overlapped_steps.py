"""Sums in buckets that begin during the backward pass, in real rings that break between two buckets."""

from __future__ import annotations

import numpy as np
import pytest

from edl_allreduce.testing.faults import Fault

pytestmark = pytest.mark.training

EACH_GRADIENT = 0.000001
"""Megabytes: a bucket of its own for each."""


def test_ranks_killed_between_two_buckets(start_job, nothing_was_lost):
    """At `reduce` all buckets but the last one are under way; the last has votes that were not given yet. In
    a ring of two each rank has two parts of a step, of which only the second one overlaps."""
    job = start_job(
        Fault("reduce", "kill", {"rank": 1, "step": 10}),
        Fault("reduce", "kill", {"rank": 0, "step": 30}),
        bucket_mb=EACH_GRADIENT,
    )
    nothing_was_lost(job)
    assert [f["rank"] for f in job.fired()] == [1, 0]


def test_a_rank_that_is_stuck_is_told_from_those_that_wait_for_it_in_a_bucket(start_job, nothing_was_lost):
    job = start_job(
        Fault("compute", "block", {"rank": 1, "step": 20}),
        bucket_mb=EACH_GRADIENT,
        failure_detection_seconds=3,
    )
    evicted = job.wait_for("evict", "has been in user code of step 20")
    assert "worker 1" in evicted.text
    nothing_was_lost(job)
    assert len(job.fired()) == 1


def test_compressed_gradients_train_as_good_a_model(start_job, undisturbed, digits_data):
    import keras

    job = start_job(gradient_compression="fp16", bucket_mb=EACH_GRADIENT)
    assert job.wait(400) == 0, job.story()
    assert job.audit().clean
    model = keras.saving.load_model(job.output / "model.keras")
    x, y = (np.load(digits_data / f"{name}.npy") for name in ("x", "y"))

    def accuracy() -> float:
        return float(np.mean(np.argmax(model.predict(x, verbose=0), axis=1) == y))

    compressed, weights = accuracy(), [v.numpy() for v in model.weights]
    model.set_weights(undisturbed)
    assert compressed == pytest.approx(accuracy(), abs=0.01)
    differ = [np.abs(one - other).max() for one, other in zip(weights, undisturbed, strict=True)]
    assert 0 < max(differ) < 0.05, "rounded on the way, and not by much"
