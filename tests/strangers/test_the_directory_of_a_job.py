"""A job keeps its token only in a directory that is its user's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edl_allreduce.cluster.registry import LocalJobFiles
from edl_allreduce.contract import JOB_TOKEN
from edl_allreduce.errors import UsageError
from edl_allreduce.master.local import JobLock, LocalJob
from edl_allreduce.spec import parse_job

NOBODY = 65534


def test_a_new_directory_is_closed_to_others(tmp_path: Path) -> None:
    LocalJobFiles(tmp_path / "deep" / "job").make_room()
    assert (tmp_path / "deep" / "job").stat().st_mode & 0o077 == 0


def test_a_directory_that_everybody_may_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(UsageError, match="written by everybody"):
        LocalJobFiles(tmp_path / "open").make_room()
    assert list((tmp_path / "open").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a directory of somebody else's")
def test_a_directory_that_somebody_else_prepared_is_refused(tmp_path: Path) -> None:
    prepared, secret = tmp_path / "prepared", tmp_path / "file of root"
    prepared.mkdir()
    secret.write_text("untouched")
    (prepared / "events.jsonl").symlink_to(secret)
    os.chown(prepared, NOBODY, NOBODY)
    with pytest.raises(UsageError, match="somebody else's"):
        LocalJobFiles(prepared).make_room()
    assert secret.read_text() == "untouched" and not (prepared / "job.json").exists()


def test_a_lock_is_no_link_to_another_file(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError), JobLock(tmp_path):
        pass
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("token", ["a", "secret", "fifteen letters"])
def test_a_token_that_could_be_guessed_is_refused(
    tmp_path: Path, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(JOB_TOKEN, token)
    spec = parse_job("master", [f"--job_dir={tmp_path}", "--job_name=job", "--job_command=true"]).spec
    with pytest.raises(UsageError, match="at least 16"):
        LocalJob(spec)
