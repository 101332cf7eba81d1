"""A master in a pod whose job is over: that is kept before anybody else is asked."""

from __future__ import annotations

import asyncio
import logging
import threading
from types import SimpleNamespace

import pytest

from edl_allreduce.core.job.lifecycle import Phase
from edl_allreduce.core.job.state import Result
from edl_allreduce.master import in_cluster
from edl_allreduce.master.in_cluster import ClusterMaster, Memory, MemoryFile
from edl_allreduce.spec import JobSpec
from tests.terminal.statuses import status


@pytest.fixture
def master(monkeypatch, tmp_path):
    monkeypatch.setattr(in_cluster.Api, "connect", lambda **_: SimpleNamespace())
    monkeypatch.setattr(in_cluster, "STATE_DIRECTORY", str(tmp_path))
    monkeypatch.setattr(in_cluster, "TERMINATION_LOG", tmp_path / "termination-log")
    made = ClusterMaster(JobSpec(job_name="digits"), {})
    made._memory = Memory(wanted=2)
    made.job = SimpleNamespace(status=lambda: status(phase="Succeeded"))
    made.metrics = SimpleNamespace(close=lambda: None)
    made.tracing = SimpleNamespace(close=lambda: None)
    made.recorder = SimpleNamespace(close=nothing)
    return made


async def nothing() -> None:
    pass


def end(master: ClusterMaster) -> None:
    asyncio.run(master._keep_the_end(Result(Phase.SUCCEEDED, "", 10, "", [], {})))


def test_a_job_is_over_for_the_next_master_before_the_last_events_are_sent(master, tmp_path):
    seen: list[tuple[str, bool]] = []

    async def close() -> None:
        before = MemoryFile(tmp_path).read()
        seen.append((before.phase if before else "", (tmp_path / "termination-log").exists()))

    master.recorder = SimpleNamespace(close=close)
    end(master)
    assert seen == [("Succeeded", True)]


def test_servers_that_are_silent_do_not_hold_the_end(master, monkeypatch, caplog):
    monkeypatch.setattr(in_cluster, "CLOSE_SECONDS", 0.01)
    answer = threading.Event()

    async def ends() -> None:
        await master._keep_the_end(Result(Phase.SUCCEEDED, "", 10, "", [], {}))
        answer.set()

    async def never() -> None:
        await asyncio.Event().wait()

    master.recorder = SimpleNamespace(close=never)
    master.tracing = SimpleNamespace(close=answer.wait)
    asyncio.run(ends())
    assert "the last Events could not be sent" in caplog.text
    assert "the last traces could not be sent" in caplog.text


def test_a_full_disk_does_not_spoil_the_end(master, monkeypatch, caplog):
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(in_cluster.files, "write", full)
    with caplog.at_level(logging.WARNING):
        end(master)
    assert "No space left on device" in caplog.text
