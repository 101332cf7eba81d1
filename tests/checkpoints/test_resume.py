"""Jobs that lose everybody, or are stopped, and go on from a checkpoint at the exact record."""

from __future__ import annotations

import signal

import pytest

from edl_allreduce.testing.faults import Fault
from edl_allreduce.worker.checkpoint import format as checkpoint

pytestmark = [pytest.mark.training, pytest.mark.timeout(900)]


def test_master_and_all_workers_killed(start_job, nothing_was_lost, tmp_path):
    """And the newest checkpoint is damaged on top of it: the one before is used."""
    job = start_job(Fault("compute", "hold", {"step": 30}, repeat=True), checkpoint_steps=8)
    job.wait_for("checkpoint", "step 24 is in", timeout=250)
    job.wait_fired(2, timeout=250)
    job.end()
    newest = tmp_path / "checkpoints" / "version-24" / "state.bin"
    newest.write_bytes(newest.read_bytes()[:-1])

    again = start_job(checkpoint_steps=8)
    event = again.wait_for("resume", timeout=250)
    assert "version-16, after 16 steps" in event.text
    warning = again.wait_for("warning", "version-24 is torn", again=True)
    assert warning.text.endswith("the job goes on from version-16, 8 steps are made again")
    assert f"WARNING [master] warning: {warning.text}" in again.stdout()
    nothing_was_lost(again)
    verdict = again.audit()
    assert (verdict.runs, verdict.set_back) == (2, 14), verdict


def test_all_workers_killed_at_once(start_job, nothing_was_lost):
    job = start_job(Fault("compute", "hold", {"step": 20}, repeat=True), checkpoint_steps=8)
    job.wait_for("checkpoint", "step 16 is in", timeout=250)
    job.wait_fired(2, timeout=250)
    for worker in range(2):
        job.signal(worker, signal.SIGKILL)
    assert "after 16 steps" in job.wait_for("resume", timeout=250).text
    job.release()
    nothing_was_lost(job)


def test_a_stopped_job_goes_on_with_another_number_of_workers(start_job, nothing_was_lost, tmp_path):
    job = start_job(Fault("applied", "hold", {"step": 17}, repeat=True))
    job.wait_fired(2, timeout=250)
    job.process.send_signal(signal.SIGINT)
    job.wait_for("stop")
    job.release()
    assert job.wait() == 130, job.story()
    (path,) = checkpoint.versions(tmp_path / "checkpoints")
    step = checkpoint.read(path).contents.step
    assert step in (18, 19, 20), "at the first boundary after the workers heard of it"

    again = start_job(workers=3)
    assert f"after {step} steps" in again.wait_for("resume", timeout=250).text
    nothing_was_lost(again)
    assert again.audit().set_back == 0, "a stop loses nothing"


def test_the_last_worker_writes_a_checkpoint_when_it_is_told_to_leave(start_job, nothing_was_lost):
    job = start_job(Fault("applied", "terminate", {"step": 17}), workers=1)
    job.wait_for("drain", timeout=250)
    job.wait_for("checkpoint", "is in", timeout=250)
    nothing_was_lost(job)
    assert len(job.fired()) == 1


def test_the_last_one_left_writes_a_checkpoint_when_no_master_can_let_it_go(start_job, nothing_was_lost):
    """Master and the other worker are killed, and this one is told to leave: as when a node is lost."""
    hold = Fault("compute", "hold", {"step": 17}, repeat=True)
    job = start_job(hold, failure_detection_seconds=5, master_grace_seconds=600)
    job.wait_fired(2, timeout=250)
    pids = [job.pid(worker) for worker in range(2)]
    job.process.kill()
    job.process.wait()
    job.signal(0, signal.SIGKILL)
    job.signal(1, signal.SIGTERM)
    job.release()
    job.until_gone(pids)
    assert "ends: the master is gone" in job.log(1)

    again = start_job()
    assert "after 17 steps" in again.wait_for("resume", timeout=250).text
    nothing_was_lost(again)
    assert again.audit().set_back == 0, "nothing is lost"
