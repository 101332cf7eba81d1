"""What happened is kept: over a restart of the master, in a file that is bounded, in a pod's log."""

from __future__ import annotations

import json

import pytest

from edl_allreduce.cluster.kubernetes.remote import events_in, logged
from edl_allreduce.cluster.registry import EVENTS, EVENTS_BEFORE, LocalJobFiles
from edl_allreduce.core import event_data, events
from edl_allreduce.core.protocol import NoteKind
from edl_allreduce.core.status import EventRecord
from edl_allreduce.master import history as history_module
from edl_allreduce.master import inheritance
from edl_allreduce.master.history import History, PodHistory

READY = events.WorkerReady(3)


def record(serial: int, event: events.Event = READY) -> EventRecord:
    return EventRecord(serial, 100.0 + serial, event.kind, event.text(), event_data.to_data(event))


def wrote(directory, *serials: int, goes_on: bool = False) -> int:
    history = History(directory, goes_on=goes_on)
    for serial in serials:
        history.write(record(serial))
    history.close()
    return history.last_serial


def kept(directory) -> list[int]:
    return [event.serial for event in LocalJobFiles(directory).events()]


def test_a_master_that_takes_over_writes_on(tmp_path):
    assert wrote(tmp_path, 1, 2) == 0
    assert wrote(tmp_path, 3, goes_on=True) == 2
    assert kept(tmp_path) == [1, 2, 3]


def test_a_new_job_in_the_same_directory_begins_anew(tmp_path):
    wrote(tmp_path, 1, 2)
    (tmp_path / EVENTS_BEFORE).write_bytes(b"old\n")
    sums = tmp_path / inheritance.FILE
    sums.write_bytes(b"{}")
    wrote(tmp_path, goes_on=True)
    assert sums.exists(), "they are those of the job that goes on"
    assert wrote(tmp_path, 1) == 0
    assert kept(tmp_path) == [1]
    assert not sums.exists(), "if this master is killed before its first word, the next begins at zero"


def test_a_line_that_a_killed_master_did_not_finish_costs_only_itself(tmp_path):
    wrote(tmp_path, 1)
    with (tmp_path / EVENTS).open("ab") as file:
        file.write(b'{"serial":2,"wa')
    wrote(tmp_path, 3, goes_on=True)
    assert kept(tmp_path) == [1, 3]


def test_the_file_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(history_module, "LARGEST_BYTES", 1000)
    wrote(tmp_path, *range(1, 101))
    numbers = kept(tmp_path)
    assert numbers == list(range(numbers[0], 101)), "the latest, without a gap"
    assert numbers[0] > 1 and len(numbers) >= 10
    assert all((tmp_path / name).stat().st_size < 1300 for name in (EVENTS, EVENTS_BEFORE))
    assert wrote(tmp_path, goes_on=True) == 100


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("event", [READY, events.Noted(NoteKind.POD, "line one\nline two: {}")])
def test_events_are_data_in_the_log_of_a_pod_whatever_else_it_prints(event, as_json):
    told = record(7, event)
    line = logged(told, as_json=as_json)
    assert "\n" not in line
    if as_json:
        said = json.loads(line)
        assert (said["process"], said["event"]["serial"]) == ("master", 7) and said["time"].endswith("+00:00")
    others = [
        "2026-01-01 00:00:00,000 INFO [master] ready: worker 9 is ready", "event {broken", "event",
        '{"event":{broken', '{"event":{"serial":1}}', '{"time":"","message":"ready"}',
    ]  # fmt: skip
    assert events_in([*others, line, *others]) == [told]
    assert event_data.from_data(events_in([line])[0].event) == event


def test_a_pod_whose_master_restarts_knows_what_the_earlier_one_told(tmp_path):
    first = PodHistory(tmp_path, goes_on=False)
    for serial in (1, 2):
        first.write(record(serial))
    second = PodHistory(tmp_path, goes_on=True)
    assert [known.serial for known in second.known] == [1, 2] and second.last_serial == 2
    second.write(record(3))
    assert kept(tmp_path) == [1, 2, 3]


def test_a_pod_without_a_directory_keeps_nothing_and_goes_on(tmp_path):
    history = PodHistory(tmp_path / "none", goes_on=True)
    history.write(record(1))
    assert (history.known, history.last_serial) == ([], 0)
