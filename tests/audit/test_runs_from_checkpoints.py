"""A job that comes back from a checkpoint makes some updates again; the audit tells that from a fault."""

from __future__ import annotations

import os

import pytest

from edl_allreduce.cli import audit as cli
from edl_allreduce.core import protocol
from edl_allreduce.core.audit import Applied, Begin, Entry, Fed, Manifest, Start, judge
from edl_allreduce.errors import UsageError
from edl_allreduce.worker.loop.diary import Diary, audit, write_manifest

DATASET = 40
BATCH = 4
PER_EPOCH = DATASET // BATCH


def trained(generation: int, first: int, last: int, run: int = 0) -> list[Entry]:
    """One worker alone in its ring, from update `first` to before `last`."""
    entries: list[Entry] = [Begin(generation, first, 0, 1, run)]
    for step in range(first, last):
        epoch, at = divmod(step, PER_EPOCH)
        entries += [
            Fed(generation, step, epoch, list(range(at * BATCH, (at + 1) * BATCH))),
            Applied(generation, step),
        ]
    return entries


def test_updates_after_the_checkpoint_are_made_again():
    workers = {"a": trained(1, 0, 14), "b": trained(1, 10, 20, run=1)}
    verdict = judge(workers, dataset=DATASET, finished=True, starts={0: Start(), 1: Start(10, 40)})
    assert verdict.clean, verdict
    assert (verdict.steps, verdict.epochs, verdict.runs, verdict.set_back) == (20, 2, 2, 4)
    assert "begun anew 1 time" in str(verdict)
    assert "4 steps that nobody held any more were made again" in str(verdict)


def test_the_same_generation_number_in_two_runs_is_no_contradiction():
    workers = {"a": trained(1, 0, 5), "b": trained(1, 0, 20, run=1)}
    assert judge(workers, dataset=DATASET, finished=True).clean


def test_a_worker_that_is_set_back_within_a_run_lost_a_step():
    verdict = judge({"a": [*trained(1, 0, 14), *trained(2, 10, 20)]}, dataset=DATASET, finished=True)
    assert not verdict.clean
    assert "was set back to 10" in verdict.problems[0]


def test_a_gap_between_a_checkpoint_and_what_was_trained_is_found():
    workers = {"a": trained(1, 0, 8), "b": trained(1, 10, 20, run=1)}
    verdict = judge(workers, dataset=DATASET, finished=True, starts={0: Start(), 1: Start(10, 40)})
    assert "begins after 10 updates, but only 8" in verdict.problems[0]


@pytest.mark.parametrize("step", [3, 10, 13])
def test_an_audit_that_begins_at_a_checkpoint_asks_only_for_the_rest_of_that_epoch(step):
    starts = {0: Start(step, step * BATCH)}
    assert judge({"a": trained(1, step, 20)}, dataset=DATASET, finished=True, starts=starts).clean
    verdict = judge({"a": trained(1, step, 19)}, dataset=DATASET, finished=True, starts=starts)
    assert "4 of 40 records were never used" in verdict.problems[0]


def test_a_later_run_may_begin_before_the_first_one():
    """The newest checkpoint turned out to be torn."""
    workers = {"a": trained(1, 12, 14), "b": trained(1, 5, 20, run=1)}
    verdict = judge(workers, dataset=DATASET, finished=True, starts={0: Start(12, 48), 1: Start(5, 20)})
    assert verdict.clean, verdict
    assert verdict.steps == 15


def test_records_that_were_left_out_are_named_and_counted_once():
    entries = trained(1, 0, 20)
    for at, entry in enumerate(entries):
        if isinstance(entry, Fed) and 7 in entry.records:
            good = [record for record in entry.records if record != 7]
            entries[at] = Fed(entry.generation, entry.step, entry.epoch, good, [7])
    verdict = judge({"a": entries}, dataset=DATASET, finished=True, lost_records=299)
    assert verdict.clean, verdict
    assert (verdict.bad_records, verdict.records) == (1, 2 * DATASET - 2)
    assert "without 1 bad record and about 299 records in unreadable parts of the files" in str(verdict)


def test_a_job_that_still_writes_is_not_judged(tmp_path):
    diary = Diary(str(tmp_path), 0, "a")
    diary.open_run(0, 0)
    for entry in trained(1, 0, 5):
        diary.write(entry)
    write_manifest(str(tmp_path), Manifest(DATASET))
    with pytest.raises(UsageError, match="still runs: worker-0-a writes there"):
        audit(str(tmp_path))
    os.close(diary._descriptor)  # as its process's end would
    assert audit(str(tmp_path)).clean


def test_a_diary_that_cannot_be_written_ends_with_a_warning_and_not_the_training(tmp_path):
    told: list[protocol.Note] = []
    diary = Diary(str(tmp_path), 0, "a", told.append)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, diary._descriptor)
    os.close(full)
    for entry in trained(1, 0, 5):
        diary.write(entry)
    (note,) = told
    assert note.kind == protocol.NoteKind.WARNING
    assert f"the audit cannot be written to {tmp_path} any more: No space left on device" in note.text


def test_runs_get_numbers_of_their_own_on_disk_and_what_was_lost_between_them_is_told(tmp_path, capsys):
    first = Diary(str(tmp_path), 0, "a")
    assert first.open_run(0, 0) == 0
    for entry in trained(1, 0, 14):
        first.write(entry)
    second = Diary(str(tmp_path), 0, "b")
    run = second.open_run(10, 40)
    assert run == 1
    for entry in trained(1, 10, 20, run):
        second.write(entry)
    write_manifest(str(tmp_path), Manifest(DATASET, finished=True))
    verdict = audit(str(tmp_path))
    assert verdict.clean and verdict.set_back == 4, verdict
    assert cli.main([f"--audit_dir={tmp_path}"]) == cli.CLEAN
    told = capsys.readouterr().out
    assert "set back    begun anew 1 time" in told
    assert "4 steps that nobody held any more were made again" in told
