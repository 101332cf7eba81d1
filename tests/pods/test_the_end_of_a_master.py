"""A master in a pod whose job is over: that is kept before anybody else is asked."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from types import SimpleNamespace

import msgspec
import pytest

from edl_allreduce.core.goodput import Bucket, GoodputReport, ReformCause
from edl_allreduce.core.job.lifecycle import Phase
from edl_allreduce.core.job.state import Result
from edl_allreduce.core.status import CheckpointStatus, JobStatus, Tally
from edl_allreduce.master import in_cluster
from edl_allreduce.master.in_cluster import ClusterMaster, Memory, MemoryFile
from edl_allreduce.master.last_word import TERMINATION_BYTES, last_word
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
    made.notary = SimpleNamespace(close=nothing)
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


def test_the_last_word_knows_no_number_that_json_does_not_know():
    seen = status(loss=math.inf, metrics={"accuracy": 0.5, "loss": math.nan, "worst": -math.inf})
    said = msgspec.json.decode(last_word(seen), type=JobStatus)
    assert said.loss == 0.0 and said.metrics == {"accuracy": 0.5}


@pytest.mark.parametrize("letter", ["e", "ü", "\N{GRINNING FACE}", "\x01"])
def test_the_last_word_of_a_long_life_is_cut_where_it_can_still_be_read(letter):
    spent = {bucket.value: 123.456 for bucket in Bucket}
    long = GoodputReport(1e6, spent, 1e6, spent, {cause.value: spent for cause in ReformCause})
    seen = status(
        phase="Failed", reason=letter * 9000, goodput=long, tally=Tally(pauses=[1 / 3] * 50), step=77
    )
    word = last_word(seen)
    assert len(word) <= TERMINATION_BYTES
    said = msgspec.json.decode(word, type=JobStatus)
    assert (said.phase, said.step) == ("Failed", 77) and said.reason.startswith(letter)


def test_the_last_word_of_names_that_are_too_long_is_read_as_well():
    names = {f"{number} {'m' * 200}": 0.5 for number in range(100)}
    last = CheckpointStatus(10, "c" * 4000, 90.0)
    word = last_word(status(metrics=names, path="p" * 9000, waiting_for="w" * 9000, checkpoint=last))
    assert len(word) <= TERMINATION_BYTES
    assert msgspec.json.decode(word, type=JobStatus).metrics == {}


def test_who_events_are_about_is_asked_once(master):
    ours = {"apiVersion": "elasticdl.org/v1", "kind": "TrainingJob", "name": "digits", "uid": "u-2"}
    meta = {"name": "elasticdl-digits-master", "namespace": "default", "ownerReferences": [ours]}
    asked: list[str] = []

    def get(path: str) -> dict:
        asked.append(path)
        return {"metadata": meta}

    master._api = SimpleNamespace(get=get)
    subjects = master._recorder(master._owner()).subjects
    assert len(asked) == 1 and [one["kind"] for one in subjects] == ["Pod", "TrainingJob"]
    assert all(one["metadata"]["namespace"] == "default" for one in subjects)
