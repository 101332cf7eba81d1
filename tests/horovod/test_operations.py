"""What the ring computes, with one mesh and with all contexts, with our store and one like Horovod's own."""

from __future__ import annotations

import pytest
from ring_lab import Lab

pytestmark = pytest.mark.training


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize(
    "setting",
    [{}, {"HOROVOD_EDL_LEAN_INIT": "0"}, {"HOROVOD_EDL_STORE_BATCH": "1"}, {"HOROVOD_CACHE_CAPACITY": "0"}],
    ids=["lean", "all contexts", "batch", "no cache"],
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
    lab.tell_init(ring, lab.store(3, blocking=False))
    for worker in ring:
        worker.answer().good()


def test_an_init_asks_the_store_once_per_peer(lab: Lab) -> None:
    ring = lab.workers(4)
    store = lab.store(4)
    lab.tell_init(ring, store)
    for worker in ring:
        worker.answer().good()
    for rank in range(4):
        methods = [request.method for request in store.requests if request.rank == rank]
        assert sorted(methods) == ["DELETE", "GET", "GET", "GET", "PUT"]


def test_the_build_says_what_it_can_do(lab: Lab) -> None:
    (worker,) = lab.workers(1)
    assert worker.ask("features").good() & 127 == 127
