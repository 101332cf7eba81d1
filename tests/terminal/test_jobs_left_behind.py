"""What jobs leave in the state directory: found newest first, described when lost, removed when asked."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from edl_allreduce import clock
from edl_allreduce.cli import main as cli
from edl_allreduce.cluster.known import Address
from edl_allreduce.cluster.processes import process_ticks
from edl_allreduce.cluster.registry import LocalJobFiles, find_job, known_jobs, newest_checkpoint
from edl_allreduce.errors import UsageError
from tests.terminal.statuses import status

DAY = 24 * 3600


@pytest.fixture
def jobs(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "elasticdl" / "jobs"


def leave(
    directory: Path, *, days: float = 0.0, runs: bool = False, ended: bool = True, flags=(), cwd: str = ""
) -> LocalJobFiles:
    """What a job wrote that began so many days ago."""
    directory.mkdir(parents=True)
    job = LocalJobFiles(directory)
    pid = os.getpid() if runs else 0
    ticks = process_ticks(pid) if runs else 1
    began = clock.wall() - days * DAY
    job.register(Address(directory.name, "127.0.0.1:1", "t", pid, ticks, began, cwd, list(flags)))
    if ended and not runs:
        job.write_result(status(job_name=directory.name, phase="Succeeded", reason="200 steps"))
    return job


def test_the_newest_job_comes_first(jobs):
    for name, days in {"b": 3, "c": 1, "a": 2}.items():
        leave(jobs / name, days=days)
    assert [job.name for job in known_jobs()] == ["c", "a", "b"]


def test_the_list_is_short_unless_all_are_asked_for(jobs, capsys):
    for number in range(18):
        leave(jobs / f"job-{number:02}", days=number)
    assert cli.main(["jobs"]) == 0
    shown = capsys.readouterr().out
    assert "job-00" in shown and "job-14" in shown and "job-15" not in shown
    assert "3 older ones" in shown and "jobs --all" in shown
    assert cli.main(["jobs", "--all"]) == 0
    assert "job-17" in capsys.readouterr().out
    assert cli.main(["status"]) == 0
    assert capsys.readouterr().out == shown, "one list, whoever asks"


def test_an_error_names_a_few_jobs_and_those_that_run_first(jobs):
    for number in range(30):
        leave(jobs / f"job-{number:02}", days=number)
    leave(jobs / "old-but-running", days=99, runs=True)
    with pytest.raises(UsageError) as error:
        find_job("nothing-like-it")
    text = str(error.value)
    assert "old-but-running (runs)" in text and "job-00 (over)" in text and "job-05" not in text
    assert "31 local jobs" in text and "`elasticdl jobs`" in text


def test_jobs_are_removed_by_name_and_nothing_else_is(jobs, capsys):
    leave(jobs / "done")
    leave(jobs / "other")
    assert cli.main(["jobs", "rm", "done"]) == 0
    assert "removed done" in capsys.readouterr().out
    assert [job.name for job in known_jobs()] == ["other"]


def test_old_jobs_are_removed_together_but_never_a_running_one(jobs):
    leave(jobs / "young", days=2)
    leave(jobs / "old", days=40)
    leave(jobs / "lost", days=50, ended=False)
    leave(jobs / "running", days=60, runs=True)
    assert cli.main(["jobs", "rm", "--older_than=30"]) == 0
    assert [job.name for job in known_jobs()] == ["young", "running"]


def test_a_running_job_is_not_removed_by_its_name(jobs, capsys):
    leave(jobs / "running", runs=True)
    assert cli.main(["jobs", "rm", "running"]) == 2
    assert "elasticdl stop --job_name=running" in capsys.readouterr().err
    assert (jobs / "running").is_dir()


@pytest.mark.parametrize("outside", ["..", "../../precious", "/"])
def test_nothing_outside_the_jobs_directory_is_removed(jobs, tmp_path, outside, capsys):
    leave(jobs / "a-job")
    (tmp_path / "state" / "precious").mkdir()
    assert cli.main(["jobs", "rm", outside]) == 2
    assert (tmp_path / "state" / "precious").is_dir() and (jobs / "a-job").is_dir()


def test_a_link_to_somewhere_else_is_not_followed(jobs, tmp_path, capsys):
    leave(tmp_path / "elsewhere")
    jobs.mkdir(parents=True)
    (jobs / "elsewhere").symlink_to(tmp_path / "elsewhere")
    assert cli.main(["jobs", "rm", "elsewhere"]) == 2
    assert (tmp_path / "elsewhere" / "job.json").exists()


@pytest.mark.parametrize(
    "words", [["rm"], ["rm", "--older_than=soon"], ["rm", "--older_than=-1"], ["rm", "a", "--older_than=1"]]
)
def test_a_removal_that_says_not_what_is_refused(jobs, words, capsys):
    assert cli.main(["jobs", *words]) == 2
    assert "older_than" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------- lost jobs


def test_a_lost_job_says_which_checkpoint_is_there_and_what_to_type(jobs, tmp_path, capsys):
    for step, whole in {10: True, 103: True, 120: False}.items():
        checkpoint(tmp_path / "my ckpt", step, whole=whole)
    flags = ["--job_name=lost", "--model_def=digits.mlp.custom_model", "--training_data=data",
             "--checkpoint_dir=my ckpt", "--num_workers=3"]  # fmt: skip
    leave(jobs / "lost", ended=False, flags=flags, cwd=str(tmp_path))
    assert cli.main(["status", "--job_name=lost"]) == 1
    said = capsys.readouterr().err
    assert f"A checkpoint of step 103 is in {tmp_path / 'my ckpt' / 'version-103'}" in said
    assert f"cd {tmp_path} && elasticdl train --job_name=lost" in said
    assert "'--checkpoint_dir=my ckpt'" in said and "--num_workers=3" in said


@pytest.mark.parametrize(
    ("flag", "expected"),
    [("--output=out", "without --checkpoint_dir"), ("--checkpoint_dir=none", "none holds no checkpoint yet")],
)
def test_a_lost_job_without_a_checkpoint_says_so(jobs, tmp_path, flag, expected, capsys):
    flags = ["--job_name=lost", "--model_def=a.b.c", "--training_data=data", flag]
    leave(jobs / "lost", ended=False, flags=flags, cwd=str(tmp_path))
    assert cli.main(["status", "--job_name=lost"]) == 1
    said = capsys.readouterr().err
    assert expected in said and "To begin again" in said


def checkpoint(directory: Path, step: int, *, whole: bool = True) -> None:
    made = directory / f"version-{step}"
    made.mkdir(parents=True)
    if whole:
        (made / "done").write_text("x")


def test_the_newest_whole_checkpoint_counts(tmp_path):
    assert newest_checkpoint(tmp_path / "nowhere") is None
    for step in (9, 100, 20):
        checkpoint(tmp_path, step)
    checkpoint(tmp_path, 200, whole=False)
    (tmp_path / "version-x").mkdir()
    assert newest_checkpoint(tmp_path) == (100, tmp_path / "version-100")


# ------------------------------------------------------------------------------- places that do not work


@pytest.fixture
def flags(digits_flags) -> list[str]:
    """A job with which nothing else is wrong."""
    return ["--job_name=another", *(f"--{name}={value}" for name, value in digits_flags.items())]


def test_a_place_that_cannot_be_written_is_refused_with_the_cure(tmp_path, flags, capsys):
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    for directory in (in_the_way, in_the_way / "below"):
        assert cli.main(["train", *flags, f"--job_dir={directory}"]) == 2
        said = capsys.readouterr().err
        assert f"--job_dir={directory} cannot be written" in said and "choose another" in said


def test_a_log_file_that_cannot_be_written_is_refused(tmp_path, flags, capsys):
    assert cli.main(["train", *flags, f"--job_dir={tmp_path / 'job'}", f"--log_file_path={tmp_path}"]) == 2
    assert "--log_file_path" in capsys.readouterr().err


def test_a_directory_of_another_running_job_names_that_job(tmp_path, flags, capsys):
    job = leave(tmp_path / "one", runs=True)
    with (job.directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert cli.main(["train", *flags, f"--job_dir={job.directory}"]) == 2
    assert "a job named one is running already" in capsys.readouterr().err


@pytest.mark.programs
def test_a_port_that_is_taken_is_refused_in_one_line(tmp_path, flags):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "edl_allreduce.cli", "train", *flags, f"--job_dir={tmp_path / 'job'}",
             f"--port={port}"], capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert done.returncode == 2
    assert f"--port={port}" in done.stderr and "in use" in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
