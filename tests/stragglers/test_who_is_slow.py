"""Which workers are slow, as a pure judgement in simulated time."""

from __future__ import annotations

import pytest

from edl_allreduce.core import straggler
from edl_allreduce.core.schedule import evened, virtual_ranks
from edl_allreduce.core.straggler import REST_SECONDS, SLOW_SECONDS, Times, Watch

EVEN = {0: Times(0.100), 1: Times(0.110), 2: Times(0.105)}
ONE_SLOW = {**EVEN, 2: Times(0.300)}


def watched(watch: Watch, times: dict[int, Times], seconds: float, now: float, **options):
    """Look once in a second."""
    named, quick = [], []
    for second in range(int(seconds) + 1):
        watch, slow, again = straggler.look(watch, times, now + second, **options)
        named += slow
        quick += again
    return watch, named, quick


def test_two_scores_say_how_quick_a_worker_is():
    scores = straggler.scores({0: Times(0.1, 0.1), 1: Times(0.2, 0.1), 2: Times(0.4, 0.4), 3: Times(0.0)})
    assert [round(scores[i].best_rank, 2) for i in range(4)] == [1, 0.5, 0.25, 1]
    assert [round(scores[i].own_best, 2) for i in range(4)] == [1, 0.5, 1, 1]


def test_a_worker_that_is_slow_for_long_is_named_once():
    watch, named, _ = watched(Watch(), ONE_SLOW, SLOW_SECONDS - 1, 100.0)
    assert not named, "a moment is not long"
    _, named, _ = watched(watch, ONE_SLOW, 60, 100.0 + SLOW_SECONDS)
    assert [(slow.worker_id, slow.replaces) for slow in named] == [(2, False)]
    assert named[0].factor == pytest.approx(0.3 / 0.105)


def test_a_pause_in_its_slowness_begins_the_time_anew():
    watch, named, _ = watched(Watch(), ONE_SLOW, SLOW_SECONDS - 5, 100.0)
    watch, more, _ = watched(watch, EVEN, 2, 130.0)
    _, most, _ = watched(watch, ONE_SLOW, SLOW_SECONDS - 5, 140.0)
    assert not named + more + most


def test_one_that_is_very_quick_makes_no_stragglers_of_the_others():
    _, named, _ = watched(Watch(), {**EVEN, 3: Times(0.01)}, 100, 100.0)
    assert not named


def test_differences_that_nobody_notices_are_not_told():
    _, named, _ = watched(Watch(), {0: Times(0.001), 1: Times(0.004)}, 100, 100.0)
    assert not named


def test_a_worker_that_was_named_may_be_quick_again():
    watch, named, _ = watched(Watch(), ONE_SLOW, 40, 100.0)
    between = {**EVEN, 2: Times(0.140)}
    watch, _, quick = watched(watch, between, 10, 150.0)
    assert named and not quick, "not slow any more, but not quick either"
    watch, _, quick = watched(watch, EVEN, 10, 170.0)
    assert quick == [2] and not watch.named


def test_only_who_is_slow_by_the_factor_is_replaced():
    _, named, _ = watched(Watch(), ONE_SLOW, 40, 100.0, replace_factor=4.0)
    assert [slow.replaces for slow in named] == [False]
    _, named, _ = watched(Watch(), ONE_SLOW, 40, 100.0, replace_factor=2.0)
    assert [slow.replaces for slow in named] == [True]


def test_one_after_the_other_is_replaced_and_ever_more_seldom():
    """A slow node may bring forth one slow worker after the other."""
    watch, first, _ = watched(Watch(), ONE_SLOW, SLOW_SECONDS, 100.0, replace_factor=2.0)
    assert watch.rest_until == 100.0 + SLOW_SECONDS + REST_SECONDS and first[0].replaces
    successor = {**EVEN, 7: Times(0.300)}
    watch, early, _ = watched(watch, successor, REST_SECONDS - 2, 131.0, replace_factor=2.0)
    assert [(slow.worker_id, slow.replaces) for slow in early] == [(7, False)], "it is named meanwhile"
    watch, later, _ = watched(watch, successor, 5, 131.0 + REST_SECONDS, replace_factor=2.0)
    assert [(slow.worker_id, slow.replaces) for slow in later] == [(7, True)]
    assert watch.rest_until >= 131.0 + REST_SECONDS + 2 * REST_SECONDS


def test_a_ring_that_cannot_do_without_keeps_its_straggler():
    _, named, _ = watched(Watch(), ONE_SLOW, 40, 100.0, replace_factor=2.0, spare=False)
    assert [slow.replaces for slow in named] == [False]


@pytest.mark.parametrize(("size", "parts"), [(3, 12), (5, 12), (9, 12), (14, 12)])
def test_whoever_has_more_virtual_ranks_is_not_slow_for_that(size, parts):
    times = {
        rank: Times(0.1 * len(virtual_ranks(rank, size, parts)) * evened(rank, size, parts))
        for rank in range(size)
    }
    _, named, _ = watched(Watch(), times, 2 * SLOW_SECONDS, 100.0)
    assert named == []
    known = {round(t.seconds, 9) for t in times.values() if t.seconds}
    assert known == {round(0.1 * parts / size, 9)}, "as long as an even share"
    assert evened(0, size, 0) == 1.0, "without virtual ranks nothing changes"
