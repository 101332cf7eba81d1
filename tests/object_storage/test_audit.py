"""The audit in object storage proves what arrived there, and tells what did not."""

from __future__ import annotations

import os

import pytest

from edl_allreduce.core.audit import Applied, Begin, Fed, Manifest
from edl_allreduce.core.protocol import NoteKind
from edl_allreduce.errors import UsageError
from edl_allreduce.storage.remote import store
from edl_allreduce.storage.url import place
from edl_allreduce.worker.loop.audit_upload import staging
from edl_allreduce.worker.loop.diary import Diary, audit, refuse_other_job

pytestmark = pytest.mark.programs


def begun(bucket: str, told: list | None = None) -> Diary:
    diary = Diary(bucket, 0, "u", (told if told is not None else []).append)
    diary.write_manifest(Manifest(dataset=8, job_name="digits"))
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


def names(bucket: str) -> list[str]:
    return [found.name for found in store().below(place(bucket))]


def test_every_line_arrives_in_parts_and_is_judged_as_a_whole(bucket):
    diary = begun(bucket)
    for number in range(4):
        step(diary, number)
        diary.flush()
    diary.write_manifest(Manifest(dataset=8, job_name="digits", finished=True))
    assert len([name for name in names(bucket) if name.startswith("worker-0-u.")]) >= 4
    verdict = audit(bucket)
    assert verdict.clean and (verdict.steps, verdict.epochs, verdict.records) == (4, 1, 8)


def test_what_a_killed_worker_had_not_sent_is_sent_by_who_shares_its_disk(bucket):
    diary = begun(bucket)
    step(diary, 0)
    diary.flush()
    killed(diary)
    diary._descriptor = os.open(staging(place(bucket)) / "worker-0-u.jsonl", os.O_APPEND | os.O_WRONLY)
    for number in (1, 2, 3):
        step(diary, number)
    killed(diary)
    diary.write_manifest(Manifest(dataset=8, finished=True))
    assert audit(bucket).clean
    assert audit(bucket).records == 8, "once more: nothing is sent twice"


def test_what_was_lost_with_a_machine_is_told_and_never_called_proved(bucket):
    diary = begun(bucket)
    for number in range(3):
        step(diary, number)
    diary.flush()
    killed(diary)
    diary.write_manifest(Manifest(dataset=8, finished=True))
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
    (staging(place(bucket)) / "worker-0-u.jsonl").unlink()
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


def test_a_run_gets_a_number_that_no_other_machine_gave(bucket):
    assert begun(bucket).open_run(5, 10) == 1
    for file in staging(place(bucket)).glob("run-*.json"):
        file.unlink()  # as on another machine
    assert Diary(bucket, 1, "v").open_run(5, 10) == 2


def test_the_audit_of_another_job_is_refused(bucket):
    begun(bucket)
    refuse_other_job(bucket, "digits")
    with pytest.raises(UsageError, match="holds the audit of the job digits"):
        refuse_other_job(bucket, "letters")
