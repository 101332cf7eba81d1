"""Crashes, wrong model files, Ctrl-C, and a master that dies."""

from __future__ import annotations

import signal

import pytest

from edl_allreduce.testing.faults import Fault
from edl_allreduce.testing.jobs import alive

pytestmark = pytest.mark.training


def test_one_crash_is_shown_and_the_worker_is_replaced(start_job, nothing_was_lost):
    job = start_job(Fault("compute", "crash", {"rank": 1, "step": 20}))
    nothing_was_lost(job)
    assert "InjectedCrash" in job.log(1)
    assert any(e.kind == "failure" and "InjectedCrash" in e.text for e in job.events())


def test_a_crash_loop_backs_off_and_fails_the_job_with_the_users_traceback(start_job):
    job = start_job(Fault("compute", "crash", {"step": 3}, repeat=True), workers=1, max_worker_crashes=1)
    assert job.wait() == 1
    assert "InjectedCrash: a fault was injected here" in job.stdout()
    assert "1 failures are allowed" in job.stdout()
    assert any(e.kind == "relaunch" for e in job.events())
    assert len(job.fired()) == 2


def test_a_wrong_model_file_fails_the_job_at_once(start_job):
    job = start_job(model_def="digits.mlp.custom_model", model_params="nosuch=64", workers=2)
    assert job.wait() == 1
    assert "custom_model() does not fit" in job.stdout()
    assert not [e for e in job.events() if e.kind == "launch"][2:], "nobody was started again"


def test_ctrl_c_stops_at_a_step_boundary_and_leaves_no_orphan(start_job):
    job = start_job(Fault("compute", "hold", {"step": 20}, repeat=True))
    job.wait_fired(3)
    pids = [job.pid(worker) for worker in range(3)]
    job.process.send_signal(signal.SIGINT)
    job.wait_for("stop")
    job.release()
    assert job.wait() == 130
    assert job.audit().clean
    assert "Stopped" in job.stdout()
    assert not alive(pids)


def test_ctrl_c_twice_ends_everything_at_once_and_leaves_no_litter(start_job, tmp_path, monkeypatch):
    litter = tmp_path / "tmp"
    litter.mkdir()
    monkeypatch.setenv("TMPDIR", str(litter))
    job = start_job(Fault("compute", "hold", {"step": 20}, repeat=True))
    job.wait_fired(3)
    pids = [job.pid(worker) for worker in range(3)]
    job.process.send_signal(signal.SIGINT)
    job.wait_for("stop")
    assert list(litter.rglob("*autograph*")), "or this test proves nothing"
    job.process.send_signal(signal.SIGINT)
    assert job.wait() == 130
    assert not alive(pids)
    assert not list(litter.iterdir())


def test_workers_train_on_without_a_master_and_then_stop_cleanly(start_job):
    # The last steps fit into the grace period also on a machine that others use.
    job = start_job(Fault("compute", "hold", {"step": 48}, repeat=True), master_grace_seconds=3)
    job.wait_fired(3)
    pids = [job.pid(worker) for worker in range(3)]
    job.process.kill()
    job.process.wait()
    job.release()
    job.until_gone(pids)
    for worker in range(3):
        assert "steps = 52 (finished)" in job.log(worker)
        assert "no master for" in job.log(worker)
    verdict = job.audit()
    assert verdict.clean and verdict.steps == 52


def test_a_worker_that_cannot_be_started_fails_the_job_with_the_reason(launch, tmp_path):
    in_the_way = tmp_path / "state" / "logs"
    in_the_way.parent.mkdir()
    in_the_way.touch()
    job = launch(job_dir=in_the_way.parent, num_workers=2)
    assert job.wait() == 1, job.story()
    assert "could not be started" in job.stdout() and str(in_the_way) in job.stdout()
