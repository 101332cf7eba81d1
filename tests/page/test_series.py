"""Samples of a job that goes on for ever take no more room than a screen."""

from __future__ import annotations

from edl_allreduce.core.series import Sample, Series, sample

from .builders import status, worker


def at(wall: float) -> Sample:
    return Sample(wall, 0, 0.0, 0.0, 1, 1, 0.0, 0.0)


def test_a_sample_has_the_fastest_and_the_slowest_member_of_the_ring():
    members = [worker(0, compute_seconds=0.02), worker(1, compute_seconds=0.05), worker(2, rank=-1)]
    made = sample(status(workers=members), 7.0)
    assert (made.wall, made.ring, made.fastest, made.slowest) == (7.0, 2, 0.02, 0.05)


def test_a_year_has_no_more_samples_than_were_allowed_and_keeps_its_beginning():
    series = Series(most=100)
    wall = 0.0
    for _ in range(20_000):
        wall += 0.5
        if series.due(wall):
            series.add(at(wall))
    kept = series.after(0.0)
    assert 50 <= len(kept) <= 100
    assert kept[0].wall == 0.5 and wall - kept[-1].wall < 2 * (kept[-1].wall - kept[-2].wall)


def test_who_looks_again_gets_only_newer_ones():
    series = Series([at(1.0), at(2.0), at(3.0)])
    assert [one.wall for one in series.after(2.0)] == [3.0]
    assert series.after(3.0) == []
