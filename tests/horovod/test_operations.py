"""What the ring computes, with one mesh and with all contexts, with our store and one like Horovod's own."""

from __future__ import annotations

import pytest
from ring_lab import Lab

pytestmark = pytest.mark.training

PLAIN_STORE = {"HOROVOD_EDL_STORE_BATCH": "0"}


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize(
    "setting",
    [{}, {"HOROVOD_EDL_LEAN_INIT": "0"}, PLAIN_STORE, {"HOROVOD_CACHE_CAPACITY": "0"}],
    ids=["lean", "all contexts", "plain store", "no cache"],
)
def test_each_operation_gives_its_result(lab: Lab, size: int, setting: dict[str, str]) -> None:
    ring = lab.workers(size)
    places = [answer.good() for answer in lab.form(ring, **setting)]
    assert [place["local_rank"] for place in places] == list(range(size))
    assert {place["local_size"] for place in places} == {size}
    for _ in range(2):
        for worker in ring:
            worker.tell("all_operations")
        total = float(sum(range(1, size + 1)))
        for rank, worker in enumerate(ring):
            result = worker.answer().good()
            assert result["allreduce"] == [total]
            assert result["grouped"] == [[total], [10 * total]]
            assert result["allgather"] == [float(r + 1) for r in range(size)]
            assert result["broadcast"] == [float(size)]
            assert result["alltoall"] == [100 * r + rank for r in range(size)]
            assert result["reducescatter"] == [float(size)]


def test_a_store_that_answers_not_found_is_polled(lab: Lab) -> None:
    ring = lab.workers(3)
    lab.tell_init(ring, lab.store(3, blocking=False), **PLAIN_STORE)
    for worker in ring:
        worker.answer().good()


@pytest.mark.parametrize(
    ("setting", "asked"),
    [({}, ["GET", "PUT"]), (PLAIN_STORE, ["DELETE", "GET", "GET", "GET", "PUT"])],
    ids=["ours", "plain"],
)
def test_an_init_asks_the_store_no_more_than_needed(
    lab: Lab, setting: dict[str, str], asked: list[str]
) -> None:
    ring = lab.workers(4)
    store = lab.store(4)
    lab.tell_init(ring, store, **setting)
    for worker in ring:
        worker.answer().good()
    for rank in range(4):
        methods = [request.method for request in store.requests if request.rank == rank]
        assert sorted(methods) == asked


def test_the_build_says_what_it_can_do(lab: Lab) -> None:
    (worker,) = lab.workers(1)
    assert worker.ask("features").good() & 511 == 511
