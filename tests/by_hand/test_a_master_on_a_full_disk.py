"""A master that comes back while its disk is full goes on with its job, and writes down where it is later."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from edl_allreduce.cluster.known import Address
from edl_allreduce.cluster.registry import LocalJobFiles
from edl_allreduce.core.protocol import NoteKind
from edl_allreduce.errors import UsageError
from edl_allreduce.master import local
from edl_allreduce.master.local import LocalJob
from edl_allreduce.spec import parse_job


class Notes:
    """In the place of the job."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, kind: NoteKind, text: str) -> None:
        self.said.append(text)


class Disk:
    """Full for so many tries."""

    def __init__(self, tries: int) -> None:
        self.tries = tries
        self.written: list[Address] = []

    def register(self, files: LocalJobFiles, address: Address) -> None:
        self.tries -= 1
        if self.tries >= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.written.append(address)


@pytest.fixture
def job(tmp_path: Path) -> LocalJob:
    words = [f"--job_dir={tmp_path}", "--job_name=job", "--job_command=true"]
    job = LocalJob(parse_job("master", words).spec)
    job._address = "127.0.0.1:1"
    job.job = Notes()  # type: ignore[assignment]
    return job


def test_a_master_that_comes_back_writes_down_where_it_is_when_there_is_room(job, tmp_path, monkeypatch):
    disk = Disk(3)
    monkeypatch.setattr(LocalJobFiles, "register", lambda files, address: disk.register(files, address))
    monkeypatch.setattr(local, "REGISTER_SECONDS", 0.0)
    job._earlier = job._own_address()
    assert not job._register() and disk.written == []
    asyncio.run(job._register_later())
    assert len(disk.written) == 1
    (said,) = job.job.said
    assert "No space left on device" in said, "once"


def test_a_job_that_begins_on_a_full_disk_says_so(job, monkeypatch):
    disk = Disk(1)
    monkeypatch.setattr(LocalJobFiles, "register", lambda files, address: disk.register(files, address))
    with pytest.raises(UsageError, match="No space left on device"):
        job._register()
