"""A master in one terminal, workers in others: started, killed and added freely."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edl_allreduce.testing.faults import Fault
from edl_allreduce.testing.jobs import RunningJob

pytestmark = pytest.mark.training

MASTER = ("-m", "edl_allreduce.master.main")
STEPS = 4 * 19
EVICTED = 4


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("EDL_JOB_TOKEN", raising=False)
    return tmp_path / "state" / "elasticdl" / "jobs"


@pytest.fixture
def start_master(state: Path, launch: Callable[..., RunningJob], port: int) -> Callable[..., RunningJob]:
    """It starts nobody, and begins when two are there."""

    def start(name: str, *faults: Fault) -> RunningJob:
        return launch(
            *faults,
            name=name,
            job_dir=state / name,
            program=MASTER,
            port=port,
            min_workers=2,
            num_epochs=4,
            cool_down_seconds=1,
        )

    return start


def start_worker(job: RunningJob, worker: int, port: int, *flags: object) -> subprocess.Popen[bytes]:
    """As a person would, from the same directory; its log lies where the job's logs lie."""
    logs = job.job_dir / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "edl_allreduce.worker.main", f"--worker_id={worker}"]
    with (logs / f"worker-{worker}.log").open("wb") as log:
        return subprocess.Popen(
            [*command, f"--master_addr=localhost:{port}", *map(str, flags)],
            stdout=log,
            stderr=log,
            env=job.environment,
            start_new_session=True,
        )


def test_workers_come_are_killed_refused_and_leave_as_they_like(start_master, port, digits_data):
    job = start_master(
        "hands",
        Fault("compute", "hold", {"step": 10}, repeat=True),
        Fault("reduce", "kill", {"rank": 0, "step": 20}),
        Fault("reduce", "terminate", {"rank": 1, "step": 40}),
    )
    # This one is there before its master, and says the same in the words of old documents.
    first = start_worker(job, 0, port, f"--training_data_dir={digits_data}")
    second = start_worker(job, 1, port)
    job.wait_fired(1)
    third, fourth = start_worker(job, 2, port), start_worker(job, 3, port)
    stranger = start_worker(job, 4, port, "--minibatch_size=5")
    job.wait_for("ready", "worker 2", again=True)
    job.wait_for("ready", "worker 3", again=True)
    job.wait_for(
        "evict",
        "worker 4 differs from the rest and is refused: records of a step (10, the rest 32)",
        again=True,
    )
    assert stranger.wait(60) == EVICTED
    job.release()
    assert job.wait() == 0, job.story()
    verdict = job.audit()
    assert verdict.clean and (verdict.steps, verdict.epochs) == (STEPS, 4), job.story()
    assert first.wait(30) == -signal.SIGKILL, job.story()
    assert [process.wait(30) for process in (second, third, fourth)] == [0, 0, 0], job.story()
    assert {f["action"] for f in job.fired()} == {"hold", "kill", "terminate"}
    assert "--training_data_dir is retired" in job.log(0)
    assert "--master_addr=localhost" in job.stdout(), "the master says how workers are started"


def test_a_job_with_too_few_workers_can_be_stopped_and_keeps_what_was_trained(start_master, port):
    job = start_master(
        "few",
        Fault("reduce", "terminate", {"rank": 0, "step": 10}),
        Fault("reduce", "kill", {"rank": 0, "step": 30}),
    )
    workers = [start_worker(job, number, port) for number in range(2)]
    job.wait_for("drain", "worker 0 wants to leave, but nobody is ready to take over", again=True)
    job.wait_for("waiting", "1 of at least 2 workers remain", again=True)
    job.process.send_signal(signal.SIGINT)
    assert job.wait() == 130, job.story()
    verdict = job.audit()
    assert verdict.clean and 30 <= verdict.steps < STEPS, job.story()
    assert (job.output / "model.keras").exists()
    assert [worker.wait(30) for worker in workers] == [-signal.SIGKILL, 0], job.story()


def test_a_worker_without_the_token_is_told_what_is_missing(state, launch, port, monkeypatch):
    monkeypatch.setenv("EDL_JOB_TOKEN", "a token of 32 characters, by hand")
    job = launch(name="locked", job_dir=state / "locked", program=MASTER, port=port, num_workers=0)
    job.environment["EDL_JOB_TOKEN"] = "guess"
    stranger = start_worker(job, 7, port)
    assert stranger.wait(120) == 2
    assert "EDL_JOB_TOKEN" in job.log(7)
