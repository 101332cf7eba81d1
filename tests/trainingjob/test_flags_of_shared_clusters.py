"""Flags that only a cluster with a controller reads: their syntax, and who is told that they do nothing."""

from __future__ import annotations

import pytest

from edl_allreduce.errors import UsageError
from edl_allreduce.spec import parse_job

FLAGS = ["--job_name=job", "--model_def=a.b.c", "--training_data=/x"]
IN_PODS = [*FLAGS, "--image_name=i"]


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--deadline=tomorrow", "expected a date, a time and its zone, as in 2030-12-31T08:00:00Z"),
        ("--deadline=2030-12-31T08:00:00", "and its zone"),
        ("--queue_name=a/b", "expected letters, digits"),
        ("--weight=0", "must be at least 0.01"),
        ("--weight=nan", "must be a finite number"),
        ("--max_workers=1", "--max_workers=1 is less than --num_workers=2"),
        ("--ttl_seconds_after_finished=-1", "must be at least 0"),
        ("--clean_pod_policy=some", "must be one of Running, All, None"),
    ],
)
def test_a_wrong_value_is_named(flag, words):
    with pytest.raises(UsageError) as refused:
        parse_job("train", [*IN_PODS, flag])
    assert words in str(refused.value)


def test_a_moment_counts_in_any_zone():
    moments = ("2030-12-31T08:00:00Z", "2030-12-31T09:00:00+01:00", "2030-12-31 08:00:00+00:00")
    read = {parse_job("train", [*IN_PODS, f"--deadline={each}"]).spec.typed.deadline for each in moments}
    assert read == {1924934400.0}


def test_a_local_job_is_told_that_they_are_not_used():
    notices = parse_job("train", [*FLAGS, "--weight=2", "--queue_name=q"]).notices
    assert any("not used: --weight, --queue_name" in text for text in notices)
