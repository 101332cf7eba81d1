"""The audit in object storage proves what arrived there, and tells what did not."""

from __future__ import annotations

import os
import shutil
from types import SimpleNamespace

import msgspec
import pytest

from edl_allreduce.core.audit import Applied, Begin, Fed, Manifest
from edl_allreduce.core.protocol import NoteKind
from edl_allreduce.errors import UsageError
from edl_allreduce.storage.remote import store
from edl_allreduce.storage.url import place
from edl_allreduce.worker.loop import audit_upload
from edl_allreduce.worker.loop.audit_upload import fetch, staging
from edl_allreduce.worker.loop.diary import MANIFEST, Diary, audit, refuse_other_job

pytestmark = pytest.mark.programs

JOB = "digits"


@pytest.fixture(autouse=True)
def _busy_machine(monkeypatch):
    """However long it takes to be told the number of a run; one test has less patience."""
    monkeypatch.setattr(audit_upload, "RUN_SECONDS", 60.0)


def begun(bucket: str, told: list | None = None) -> Diary:
    diary = Diary(bucket, 0, "u", (told if told is not None else []).append, JOB)
    diary.write_manifest(Manifest(dataset=8, job_name=JOB))
    diary.write(Begin(0, 0, 0, 1, diary.open_run(0, 0)))
    return diary


def step(diary: Diary, number: int) -> None:
    diary.write(Fed(0, number, 0, [2 * number, 2 * number + 1]))
    diary.write(Applied(0, number))


def killed(diary: Diary) -> None:
    """Its lock ends with the process."""
    os.close(diary._descriptor)
    diary._descriptor = -1
    diary._upload._failed = True  # its thread is gone


def say_finished(bucket: str) -> None:
    """By another worker."""
    manifest = Manifest(dataset=8, job_name=JOB, finished=True)
    store().write(place(f"{bucket}/{MANIFEST}"), msgspec.json.encode(manifest))


def names(bucket: str) -> list[str]:
    return [found.name for found in store().below(place(bucket))]


def test_every_line_arrives_in_parts_and_is_judged_as_a_whole(bucket):
    diary = begun(bucket)
    for number in range(4):
        step(diary, number)
        diary.flush()
    diary.write_manifest(Manifest(dataset=8, job_name=JOB, finished=True))
    diary.flush()
    assert len([name for name in names(bucket) if name.startswith("worker-0-u.")]) >= 4
    verdict = audit(bucket)
    assert verdict.clean and (verdict.steps, verdict.epochs, verdict.records) == (4, 1, 8)


def test_what_a_killed_worker_had_not_sent_is_sent_by_who_shares_its_disk(bucket):
    diary = begun(bucket)
    step(diary, 0)
    diary.flush()
    killed(diary)
    diary._descriptor = os.open(staging(place(bucket), JOB) / "worker-0-u.jsonl", os.O_APPEND | os.O_WRONLY)
    for number in (1, 2, 3):
        step(diary, number)
    killed(diary)
    say_finished(bucket)
    assert audit(bucket).clean
    assert audit(bucket).records == 8, "once more: nothing is sent twice"


def test_what_was_lost_with_a_machine_is_told_and_never_called_proved(bucket):
    diary = begun(bucket)
    for number in range(3):
        step(diary, number)
    diary.flush()
    killed(diary)
    say_finished(bucket)
    verdict = audit(bucket)
    assert not verdict.clean
    assert "2 of 8 records were never used" in verdict.problems[0]


def test_a_part_that_somebody_removed_is_named(bucket):
    diary = begun(bucket)
    diary.flush()
    for number in range(3):
        step(diary, number)
        diary.flush()
    killed(diary)
    (staging(place(bucket), JOB) / "worker-0-u.jsonl").unlink()
    store().delete([place(f"{bucket}/worker-0-u.000001.jsonl")])
    assert audit(bucket).problems[0] == f"worker-0-u: part 1 of its diary is not in {bucket}"


def test_storage_that_fails_ends_the_audit_and_not_the_training(bucket, gate, monkeypatch):
    told: list = []
    diary = begun(bucket, told)
    monkeypatch.setenv("EDL_STORAGE_SECONDS", "1")
    gate.fault = lambda method, path, number: "503"
    step(diary, 0)
    diary.flush()
    assert gate.done["503"] > 0
    assert [note.kind for note in told] == [NoteKind.WARNING]
    assert "what comes now is not proved" in told[0].text
    step(diary, 1)
    written = (staging(place(bucket), JOB) / "worker-0-u.jsonl").read_bytes()
    assert written.count(b"applied") == 2, "the disk is fine: from there it can still be sent"


def test_a_run_gets_a_number_that_no_other_machine_gave(bucket):
    assert begun(bucket).open_run(5, 10) == 1
    for file in staging(place(bucket), JOB).glob("run-*.json"):
        file.unlink()  # as on another machine
    assert Diary(bucket, 1, "v", job_name=JOB).open_run(5, 10) == 2


def test_storage_that_does_not_answer_keeps_no_ring_waiting(bucket, gate, monkeypatch):
    diary = begun(bucket)
    diary.flush()
    monkeypatch.setattr(audit_upload, "RUN_SECONDS", 0.1)
    gate.fault = lambda method, path, number: "503"
    diary.write_manifest(Manifest(dataset=8, job_name=JOB))
    number = diary.open_run(5, 10)
    assert number > 1_000_000, "and never the number of a run that is there"
    assert diary.open_run(5, 10) != number
    assert gate.done["503"] > 0


def test_a_run_whose_disk_fails_has_the_number_of_no_other(tmp_path):
    diary = Diary(str(tmp_path / "audit"), 0, "u")
    assert diary.open_run(0, 0) == 0
    shutil.rmtree(tmp_path / "audit")
    assert diary.open_run(0, 0) > 1_000_000


def test_an_end_without_the_directory_of_the_diary_is_told_and_no_crash(bucket):
    told: list = []
    diary = begun(bucket, told)
    shutil.rmtree(staging(place(bucket), JOB))
    diary.flush()
    assert [note.kind for note in told] == [NoteKind.WARNING]


def test_what_an_earlier_audit_left_on_this_machine_is_not_sent_into_a_new_one(bucket):
    """Its objects were removed, and a job of the same name began."""
    old = Diary(bucket, 0, "old", job_name=JOB)
    old._upload._failed = True
    old.write(Begin(0, 0, 0, 1, 0))
    step(old, 0)
    os.close(old._descriptor)
    other = Diary(bucket, 0, "other", job_name="letters")
    other._upload._failed = True
    step(other, 0)
    os.close(other._descriptor)
    diary = begun(bucket)
    for number in range(4):
        step(diary, number)
    diary.write_manifest(Manifest(dataset=8, job_name=JOB, finished=True))
    diary.flush()
    assert audit(bucket).clean
    assert {name.split(".")[0] for name in names(bucket)} == {"worker-0-u", "run-0", "job"}


def test_a_job_that_still_writes_is_not_judged(bucket, monkeypatch):
    diary = begun(bucket)
    diary.flush()
    with pytest.raises(UsageError, match="still runs: worker-0-u writes there"):
        audit(bucket)
    os.close(diary._descriptor)  # as if it wrote on another machine, where its lock is not seen
    diary._descriptor = os.open(staging(place(bucket), JOB) / "worker-0-u.jsonl", os.O_APPEND | os.O_WRONLY)
    meanwhile = SimpleNamespace(sleep=lambda seconds: (step(diary, 0), diary.flush()))
    monkeypatch.setattr("edl_allreduce.worker.loop.diary.clock", meanwhile)
    with pytest.raises(UsageError, match="still runs: its workers send there"):
        audit(bucket)


def test_a_diary_of_more_than_a_million_parts_is_in_order(bucket, tmp_path):
    for number in (999_999, 1_000_000):
        store().write(place(f"{bucket}/worker-0-u.{number:06d}.jsonl"), b"%d\n" % number)
    assert fetch(place(bucket), tmp_path) == [f"worker-0-u: part 0 of its diary is not in {bucket}"]
    assert (tmp_path / "worker-0-u.jsonl").read_bytes() == b"999999\n1000000\n"


def test_the_audit_of_another_job_is_refused(bucket):
    begun(bucket).flush()
    refuse_other_job(bucket, "digits")
    with pytest.raises(UsageError, match="holds the audit of the job digits"):
        refuse_other_job(bucket, "letters")
