"""What a job owes besides the model is counted once, told, and not forgotten at the end."""

from __future__ import annotations

from edl_allreduce.core.account import TOLD_ONE_BY_ONE, Account


def bad(*indices: int, lost: int = 0) -> dict[int, tuple[str, int]]:
    return {index: (f"record {index} is bad", lost) for index in indices}


def test_a_bad_record_counts_once_however_often_and_by_whomever_it_is_met():
    account = Account(bad_allowed=1)
    assert "record 7 is bad; 1 bad record so far, 1 allowed" in account.left_out("training data", bad(7))
    for _ in range(9):
        assert account.left_out("training data", bad(7)) == ""
    assert account.too_many == ""
    account.left_out("training data", bad(8))
    assert account.too_many.startswith("2 bad records so far, 1 allowed (--max_bad_records)")


def test_records_of_two_data_sets_are_different_records():
    account = Account(bad_allowed=1)
    account.left_out("training data", bad(7))
    account.left_out("validation data", bad(7))
    assert account.too_many


def test_many_bad_records_do_not_flood_the_events():
    account = Account(bad_allowed=10_000)
    told = [account.left_out("training data", bad(index)) for index in range(1000)]
    assert all(told[:TOLD_ONE_BY_ONE])
    assert [text.split("; ")[1].split()[0] for text in told[TOLD_ONE_BY_ONE:] if text] == [
        "16", "32", "64", "128", "256", "512",
    ]  # fmt: skip


def test_several_bad_records_of_one_step_are_one_event():
    text = Account(bad_allowed=5).left_out("training data", bad(3, 1, 2))
    assert text.startswith("left out of the training data: record 1 is bad (and 2 more); 3 bad records")


def test_what_was_lost_with_a_bad_record_is_remarked_at_the_end():
    account = Account(bad_allowed=5)
    assert account.remarks == ""
    account.left_out("training data", bad(100, lost=299))
    account.left_out("training data", bad(100, lost=299))
    assert account.remarks == "1 bad record left out and about 299 more lost with it"


def test_a_job_none_of_whose_checkpoints_could_be_written_has_not_done_what_it_was_told():
    account = Account()
    for step in (10, 20):
        text = account.checkpointed(step, "ckpt", "No space left on device")
    assert text == "the checkpoint of step 20 could NOT be written to ckpt: No space left on device"
    assert account.shortfall == "no checkpoint could be written to ckpt: No space left on device"
    assert account.checkpointed(30, "ckpt/version-30", "") == "step 30 is in ckpt/version-30"
    assert account.shortfall == ""
    assert account.remarks == "2 of 3 checkpoints could not be written (ckpt: No space left on device)"


def test_a_job_without_checkpoints_lacks_none():
    assert Account().shortfall == Account().remarks == ""
