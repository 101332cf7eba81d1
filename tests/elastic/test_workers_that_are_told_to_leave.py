"""SIGTERM: finish the step, leave, exit 0. The others see no error."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys

import pytest

from edl_allreduce.contract import EXIT_TERMINATED
from edl_allreduce.testing.faults import Fault

pytestmark = pytest.mark.training

HOLD = Fault("compute", "hold", {"step": 20}, repeat=True)


def test_one_worker_drains_and_the_others_see_no_error(start_job, nothing_was_lost):
    job = start_job(HOLD)
    job.wait_fired(3)
    job.signal(1, signal.SIGTERM)
    job.wait_for("drain", "worker 1")
    job.wait_for("plan", "worker 1 drains")
    job.release()
    nothing_was_lost(job)
    assert "ends: drained" in job.log(1)
    for survivor in (0, 2):
        assert "broke" not in job.log(survivor)


def test_several_workers_drain_at_once(start_job, nothing_was_lost):
    job = start_job(HOLD)
    job.wait_fired(3)
    job.signal(0, signal.SIGTERM)
    job.signal(2, signal.SIGTERM)
    job.wait_for("drain")
    job.wait_for("drain")
    job.release()
    nothing_was_lost(job)
    for worker in (0, 1, 2):
        assert "broke" not in job.log(worker)


def test_the_last_worker_hands_its_state_over_before_it_leaves(start_job, nothing_was_lost):
    """All three are told to leave: somebody stays until a newcomer has the model."""
    job = start_job(HOLD)
    job.wait_fired(3)
    for worker in (0, 1, 2):
        job.signal(worker, signal.SIGTERM)
    for worker in (3, 4, 5):
        job.wait_for("launch", f"worker {worker}")
    job.wait_for("ready", "worker")
    job.release()
    nothing_was_lost(job)
    for worker in (0, 1, 2):
        assert "ends: drained" in job.log(worker)


def test_a_worker_that_drains_while_it_prepares_leaves_at_once(start_job, nothing_was_lost):
    job = start_job(Fault("prepare", "terminate", {"worker": 1}))
    job.wait_for("exit", "worker 1 drained and left")
    nothing_was_lost(job)


def test_a_worker_that_no_master_hears_says_with_its_end_that_it_was_told_to_leave(digits_flags, monkeypatch):
    """Leaving with 0 would look like a crash to a master that knows of no drain."""
    monkeypatch.setenv("EDL_JOB_TOKEN", "a token of 32 characters, by hand")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = {"worker_id": 1, "master_addr": f"127.0.0.1:{silent.getsockname()[1]}", "job_name": "job"}
        words = [f"--{name}={value}" for name, value in {**digits_flags, **place}.items()]
        command = [sys.executable, "-m", "edl_allreduce.worker.main", *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as worker:
            assert worker.stdout is not None
            next(line for line in worker.stdout if b"worker 1 (pid" in line)
            worker.terminate()
            worker.communicate(timeout=60)
            assert worker.returncode == EXIT_TERMINATED
