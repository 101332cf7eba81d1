"""A job from a notebook: started, watched, scaled, waited for."""

from __future__ import annotations

import pytest

from edl_allreduce.api import attach, submit
from edl_allreduce.errors import JobFailed, UsageError


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.mark.training
def test_a_job_is_started_watched_scaled_and_gives_its_result(tmp_path, digits_flags):
    flags = {**digits_flags, "num_epochs": 4000, "output": tmp_path / "model"}  # it is stopped long before
    job = submit(job_name="book", num_workers=1, **flags)
    try:
        seen = []
        for event in job.events():
            seen.append(event.kind)
            if event.kind == "ready" and seen.count("ready") == 1:
                assert job.scale(2).wanted == 2
            if event.kind == "re-form":  # the second worker is in
                assert attach("book").stop().phase == "Stopped"
        assert seen[-1] == "end" and "scale" in seen
        assert job.status().path.endswith("model.keras")
        with pytest.raises(JobFailed, match="Stopped: asked through the Python API"):
            job.wait()
    finally:
        if job.running:
            job.stop()


@pytest.mark.training
def test_the_reason_of_a_failure_is_raised(digits_flags):
    job = submit(job_name="wrong", num_workers=1, **digits_flags, model_params="nosuch=64")
    with pytest.raises(JobFailed, match=r"custom_model\(\) does not fit"):
        job.wait(240)


def test_what_can_be_known_is_refused_before_anything_starts(digits_flags):
    with pytest.raises(UsageError, match=r"nothing\.py, which does not exist"):
        submit(job_name="wrong", **{**digits_flags, "model_def": "digits.nothing.custom_model"})


def test_wrong_flags_are_refused_before_anything_starts():
    with pytest.raises(UsageError, match="num_worker"):
        submit(job_name="typo", num_worker=2)


def test_a_job_that_does_not_exist_cannot_be_attached():
    with pytest.raises(UsageError, match="no local job ghost"):
        attach("ghost")
