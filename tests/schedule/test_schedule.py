"""The order of records is arithmetic: each epoch uses every record once, whatever happens to the ring."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_allreduce.core.schedule import Order, Schedule, Span, micro_batches, share

orders = st.builds(
    Order,
    records=st.one_of(st.integers(1, 300), st.integers(1, 50_000)),
    seed=st.integers(-5, 2**40),
    shuffle=st.booleans(),
    block=st.sampled_from([1, 2, 3, 7, 64, 1024]),
    window_blocks=st.sampled_from([1, 2, 5, 16]),
)


def whole_epoch(order: Order, epoch: int = 0) -> list[int]:
    return order.indices(Span(epoch, 0, order.records))


# ----------------------------------------------------------------------------------------------- order


@given(order=orders, epoch=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_an_epoch_visits_every_record_exactly_once(order: Order, epoch: int) -> None:
    assert sorted(whole_epoch(order, epoch)) == list(range(order.records))


@given(order=orders, epoch=st.integers(0, 9), data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_part_of_an_epoch_is_the_same_part_however_it_is_asked_for(
    order: Order, epoch: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, order.records))
    stop = data.draw(st.integers(start, order.records))
    assert order.indices(Span(epoch, start, stop)) == whole_epoch(order, epoch)[start:stop]


@given(records=st.integers(50, 3000), seed=st.integers(0, 10**9), block=st.sampled_from([4, 100, 1024]))
@settings(max_examples=40, deadline=None)
def test_the_same_seed_gives_the_same_order_and_another_seed_or_epoch_another(
    records: int, seed: int, block: int
) -> None:
    order = Order(records, seed, block=block)
    assert whole_epoch(order) == whole_epoch(Order(records, seed, block=block))
    assert whole_epoch(order) != whole_epoch(Order(records, seed + 1, block=block))
    assert whole_epoch(order) != whole_epoch(order, 1)
    assert whole_epoch(order) != list(range(records))


def test_the_order_does_not_change_between_versions() -> None:
    """Somebody resumes a job with a newer version: the records that are left must be those not yet used."""
    assert whole_epoch(Order(12, seed=7, block=2, window_blocks=2)) == [1, 10, 9, 2, 0, 5, 11, 6, 4, 7, 3, 8]


def test_without_shuffling_records_come_as_they_are_stored() -> None:
    assert whole_epoch(Order(5, shuffle=False), 3) == [0, 1, 2, 3, 4]


def test_neighbours_on_disk_are_mixed_with_records_from_far_away() -> None:
    """A class-sorted data set must not give batches of one class."""
    order = Order(40_000, seed=1, block=100, window_blocks=16)
    batch = whole_epoch(order)[:128]
    quarters = Counter(index // 10_000 for index in batch)
    assert set(quarters) == {0, 1, 2, 3}
    assert max(quarters.values()) < 96


def test_first_halves_of_two_epochs_share_about_half_of_their_records() -> None:
    order = Order(20_000, seed=3, block=64)
    halves = [set(whole_epoch(order, epoch)[:10_000]) for epoch in (0, 1)]
    assert 4_000 < len(halves[0] & halves[1]) < 6_000


def test_the_short_block_is_another_set_of_records_in_each_epoch() -> None:
    """It always comes last; if it were always the same, those records would never be seen early."""
    order = Order(1030, seed=0, block=1024, window_blocks=1)
    lasts = {tuple(sorted(whole_epoch(order, epoch)[1024:])) for epoch in range(10)}
    assert len(lasts) > 5


@given(seed=st.integers(0, 10**6), records=st.integers(1000, 20_000))
@settings(max_examples=20, deadline=None)
def test_reading_stays_in_a_few_blocks_at_a_time(seed: int, records: int) -> None:
    """However long a batch waits for its records, they come from one window of neighbouring blocks."""
    block, window_blocks = 50, 4
    order = Order(records, seed, block=block, window_blocks=window_blocks)
    size = block * window_blocks
    visited = whole_epoch(order)
    for start in range(0, records, size):
        window = sorted(visited[start : start + size])
        # The end of the data set may lie inside a block, because every epoch begins elsewhere.
        runs = 1 + sum(b - a != 1 for a, b in pairwise(window))
        assert runs <= window_blocks + 1


def test_a_large_data_set_costs_no_more_than_its_windows() -> None:
    order = Order(100_000_000, seed=1)
    middle = order.indices(Span(3, 50_000_000, 50_000_100))
    assert len(set(middle)) == 100
    assert all(0 <= index < 100_000_000 for index in middle)


# ------------------------------------------------------------------------------------------------ steps


@given(order=orders, epochs=st.integers(1, 3), data=st.data())
@settings(max_examples=60, deadline=None)
def test_every_record_is_used_once_per_epoch_whatever_the_ring_does(
    order: Order, epochs: int, data: st.DataObject
) -> None:
    """The ring changes its size at any step; each rank reads its share in micro-batches."""
    schedule = Schedule(order, epochs)
    batch = data.draw(st.integers(max(1, order.records // 40), order.records + 10))
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=8))
    limit = data.draw(st.integers(max(1, batch // 20), batch))
    used = [Counter[int]() for _ in range(epochs)]
    position = step = 0
    while not schedule.finished(step, position):
        span = schedule.span(position, batch)
        size = sizes[step % len(sizes)]
        for rank in range(size):
            for part in micro_batches(share(span, rank, size), limit):
                used[part.epoch].update(order.indices(part))
        position += len(span)
        step += 1
    assert step == schedule.steps(batch)
    for counted in used:
        assert len(counted) == order.records
        assert set(counted.values()) == {1}


@given(order=orders, epochs=st.integers(1, 3), data=st.data())
@settings(max_examples=40, deadline=None)
def test_a_batch_that_grows_and_shrinks_with_the_ring_still_uses_every_record_once(
    order: Order, epochs: int, data: st.DataObject
) -> None:
    """--elastic_batch=worker: the global batch follows the number of workers."""
    schedule = Schedule(order, epochs)
    minibatch = data.draw(st.integers(max(1, order.records // 40), order.records + 1))
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=8))
    used: list[list[int]] = [[] for _ in range(epochs)]
    position = step = 0
    while not schedule.finished(step, position):
        size = sizes[step % len(sizes)]
        span = schedule.span(position, minibatch * size)
        for rank in range(size):
            mine = share(span, rank, size)
            assert len(mine) <= minibatch
            used[span.epoch] += order.indices(mine)
        position += len(span)
        step += 1
    assert position == schedule.end
    for indices in used:
        assert sorted(indices) == list(range(order.records))


@given(start=st.integers(0, 10**6), length=st.integers(0, 5000), size=st.integers(1, 300))
@settings(max_examples=150, deadline=None)
def test_shares_cover_a_batch_in_rank_order_and_differ_by_at_most_one(
    start: int, length: int, size: int
) -> None:
    span = Span(2, start, start + length)
    shares = [share(span, rank, size) for rank in range(size)]
    assert shares[0].start == span.start
    assert shares[-1].stop == span.stop
    assert all(a.stop == b.start for a, b in pairwise(shares))
    lengths = {len(s) for s in shares}
    assert max(lengths) - min(lengths) <= 1
    assert {s.epoch for s in shares} == {2}


@given(length=st.integers(0, 5000), limit=st.integers(1, 600))
@settings(max_examples=150, deadline=None)
def test_micro_batches_are_few_small_enough_and_of_nearly_equal_size(length: int, limit: int) -> None:
    span = Span(0, 17, 17 + length)
    parts = list(micro_batches(span, limit))
    assert sum(map(len, parts)) == length
    assert len(parts) == -(-length // limit)
    assert all(0 < len(part) <= limit for part in parts)
    if parts:
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        assert parts[0].start == span.start
        assert parts[-1].stop == span.stop
        assert all(a.stop == b.start for a, b in pairwise(parts))


def test_the_last_batch_of_an_epoch_is_what_is_left() -> None:
    schedule = Schedule(Order(10), epochs=2)
    spans = [schedule.span(position, 4) for position in (0, 4, 8, 10, 14, 18)]
    assert [len(span) for span in spans] == [4, 4, 2, 4, 4, 2]
    assert [span.epoch for span in spans] == [0, 0, 0, 1, 1, 1]
    assert schedule.steps(4) == 6


def test_with_fewer_records_than_workers_some_have_nothing_to_read() -> None:
    schedule = Schedule(Order(3), epochs=1)
    span = schedule.span(0, 64)
    shares = [share(span, rank, 5) for rank in range(5)]
    assert [len(s) for s in shares] == [1, 1, 1, 0, 0]
    assert list(micro_batches(shares[4], 8)) == []
    assert schedule.finished(1, len(span))


def test_max_step_ends_a_job_in_the_middle_of_an_epoch() -> None:
    schedule = Schedule(Order(100), epochs=5, max_step=7)
    assert schedule.steps(10) == 7
    assert not schedule.finished(6, 60)
    assert schedule.finished(7, 70)
    assert Schedule(Order(100), epochs=1, max_step=999).steps(10) == 10


def test_a_job_of_no_epochs_is_finished_at_once() -> None:
    assert Schedule(Order(100), epochs=0).finished(0, 0)


# ------------------------------------------------------------------------------------------ wrong values


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Order(0), "at least one record, got 0"),
        (lambda: Order(5, block=0), "at least 1, got 0, 16"),
        (lambda: Order(5, window_blocks=0), "at least 1"),
        (lambda: Order(5).indices(Span(0, 3, 6)), "outside an epoch of 5 records"),
        (lambda: Order(5, shuffle=False).indices(Span(0, 3, 6)), "outside an epoch of 5 records"),
        (lambda: Order(5).indices(Span(0, -1, 2)), "outside an epoch"),
        (lambda: Schedule(Order(5), 1).span(5, 2), r"position 5 is outside \[0, 5\)"),
        (lambda: Schedule(Order(5), 1).span(-1, 2), "position -1 is outside"),
        (lambda: Schedule(Order(5), 1).span(0, 0), "at least one record, got 0"),
        (lambda: Schedule(Order(5), 1).steps(0), "at least one record, got 0"),
        (lambda: share(Span(0, 0, 5), 3, 3), "rank 3 is outside a ring of 3"),
        (lambda: list(micro_batches(Span(0, 0, 5), 0)), "got a limit of 0"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(call: object, message: str) -> None:
    """Each of these would loop for ever, divide by zero or read records that do not exist."""
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]
