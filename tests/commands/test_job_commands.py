"""status, scale, stop, logs, events, hosts and audit, on one real job that a user started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edl_allreduce import clock
from edl_allreduce.cluster.known import Address
from edl_allreduce.cluster.processes import process_ticks
from edl_allreduce.cluster.registry import LocalJobFiles
from edl_allreduce.testing.faults import Fault

NAME = "digits"


def elasticdl(*arguments: str, code: int = 0) -> str:
    """What the command prints; on standard error for a failure."""
    done = subprocess.run(
        [sys.executable, "-m", "edl_allreduce.cli", *arguments], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stdout + done.stderr


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this user's jobs are."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "elasticdl" / "jobs"


@pytest.mark.training
def test_a_running_job_is_watched_scaled_stopped_and_audited_by_its_name(state, launch, cold, digits_flags):
    hold = Fault("compute", "hold", {"step": 12}, repeat=True)
    flags = {"num_workers": 2, "num_epochs": 400, "minibatch_size": 16}
    job = launch(hold, name=NAME, job_dir=state / NAME, program=cold, **flags)
    job.wait_fired(1)

    assert "Training" in elasticdl("status")
    seen = json.loads(elasticdl("status", f"--job_name={NAME}", "--output=json"))
    assert (seen["phase"], seen["wanted"], seen["generation"]) == ("Training", 2, 1)
    assert sorted(worker["rank"] for worker in seen["workers"]) == [0, 1]
    assert "ring 2 of 2" in elasticdl("status", f"--job_name={NAME}")
    assert elasticdl("hosts") == "localhost:2\n"  # the only one that runs needs no name
    assert "pid" in elasticdl("logs", "1") and "[worker 0]" in elasticdl("logs")
    same = [f"--{flag}={digits_flags[flag]}" for flag in ("model_zoo", "model_def", "training_data")]
    refusal = elasticdl("train", f"--job_name={NAME}", *same, code=2)
    assert "running already" in refusal and f"elasticdl stop --job_name={NAME}" in refusal
    assert "still runs" in elasticdl("audit", f"--job_name={NAME}", code=2)
    assert "at least 1" in elasticdl("scale", "--num_workers=0", code=2)
    assert "there is no worker 9" in elasticdl("drain", "9", code=2)

    elasticdl("scale", "--num_workers=4")
    for worker in (2, 3):
        job.wait_for("ready", f"worker {worker}", again=True)
    job.release()
    plan = job.wait_for("plan", "joins")
    assert "workers 0, 1, 2, 3" in plan.text, "both newcomers join in one re-form"
    job.wait_for("re-form")
    elasticdl("scale", "--num_workers=2")
    job.wait_for("plan", "drains")
    job.wait_for("re-form")

    assert "Stopped" in elasticdl("stop", f"--job_name={NAME}")
    assert job.wait() == 130
    assert f"{NAME}" in elasticdl("status") and "Stopped" in elasticdl("status")
    assert "over: Stopped" in elasticdl("scale", f"--job_name={NAME}", "--num_workers=2", code=1)
    assert "clean" in elasticdl("audit", f"--job_name={NAME}")
    assert "from 2 to 4 workers" in elasticdl("events", f"--job_name={NAME}", "--follow")
    life = elasticdl("story", f"--job_name={NAME}", "3")
    assert "worker 3 starts" in life and "worker 3 drains" in life and "worker 2 starts" not in life
    assert "worker 3: ready after" in elasticdl("story", f"--job_name={NAME}")
    assert "Workers: 0, 1, 2, 3." in elasticdl("story", f"--job_name={NAME}", "7", code=2)
    assert (job.output / "model.keras").exists(), "what was trained so far is kept"


def test_a_job_that_does_not_exist_lists_those_that_do(state):
    _leave_behind(state / "digits", pid=os.getpid())
    message = elasticdl("status", "--job_name=digit", code=2)
    assert "there is no local job digit" in message and "Did you mean digits?" in message
    assert "digits (runs)" in message


def test_without_any_job_the_way_to_start_one_is_shown(state):
    assert "elasticdl train" in elasticdl("status")
    assert "elasticdl train" in elasticdl("events", code=2)


def test_a_master_that_was_killed_is_not_taken_for_a_running_one(state):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    _leave_behind(state / "killed", pid=child.pid)
    assert LocalJobFiles(state / "killed").running() is not None
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert "Lost" in elasticdl("status")
    assert "ended without a result" in elasticdl("stop", "--job_name=killed", code=1)


def test_a_pid_that_is_used_again_is_no_master(state):
    _leave_behind(state / "old", pid=os.getpid(), ticks=1)
    assert LocalJobFiles(state / "old").running() is None


def test_only_the_owner_can_read_the_token(state):
    _leave_behind(state / "secret", pid=os.getpid())
    assert (state / "secret" / "job.json").stat().st_mode & 0o077 == 0


def test_an_audit_that_is_not_clean_fails(tmp_path):
    (tmp_path / "job.json").write_text('{"dataset": 4, "finished": true}')
    lines = [
        '{"begin": {"generation": 1, "step": 0, "rank": 0, "size": 1}}',
        '{"fed": {"generation": 1, "step": 0, "epoch": 0, "records": [0, 1, 1]}}',
        '{"applied": {"generation": 1, "step": 0}}',
    ]
    (tmp_path / "worker-0-a.jsonl").write_text("\n".join(lines) + "\n")
    report = elasticdl("audit", f"--audit_dir={tmp_path}", code=1)
    assert "NOT CLEAN" in report and "more than once" in report and "never used" in report


def test_an_audit_of_nothing_says_what_to_name(tmp_path):
    assert "--audit_dir" in elasticdl("audit", f"--audit_dir={tmp_path}", code=1)


@pytest.mark.parametrize(
    "command",
    ["status", "jobs", "attach", "top", "scale", "stop", "logs", "events", "story", "hosts", "audit"],
)
def test_help_teaches_with_an_example(command):
    _, _, about = elasticdl(command, "--help").partition("\n")
    assert f"elasticdl {command} " in about


def _leave_behind(directory: Path, *, pid: int, ticks: int | None = None) -> None:
    directory.mkdir(parents=True)
    began = process_ticks(pid) if ticks is None else ticks
    LocalJobFiles(directory).register(
        Address(directory.name, "127.0.0.1:1", "token", pid, began, started=clock.wall())
    )
