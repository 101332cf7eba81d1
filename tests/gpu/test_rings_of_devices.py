"""Horovod's own NCCL code in real processes, over a stand-in for CUDA and NCCL: a test double of hardware.

The stand-in notices no lost peer, as NVLink and shared memory do not, and an aborted kernel leaves garbage.
So whoever waits for a peer that is gone waits until somebody aborts, and whoever takes such a result for a
sum is caught.
"""

from __future__ import annotations

import threading

import pytest
from ring_lab import Lab, Worker

pytestmark = [pytest.mark.nccl, pytest.mark.training, pytest.mark.timeout(1800)]


def whatever_is_left_re_forms(lab: Lab, ring: list[Worker]) -> None:
    lab.leave(ring)
    lab.form(ring)


def fails(worker: Worker) -> str:
    """The sum failed, and nothing wrote to its memory afterwards; why it failed."""
    said = worker.answer().good()
    assert said["failure"]
    assert not said["touched"], "a kernel wrote to a tensor that its owner had back"
    failure: str = said["failure"]
    return failure


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_operation_gives_what_it_should(lab: Lab, size: int) -> None:
    ring = lab.workers(size)
    lab.form(ring)
    for worker in ring:
        worker.tell("device_operations")
    ranks = range(size)
    several = [[float(sum(i + rank for rank in ranks)) for i in range(count)] for count in (1, 7, 1000)]
    for worker in ring:
        said = worker.answer().good()
        assert said["broadcast"] == [size - 1.0] * 5
        assert said["gather"] == [float(rank) for rank in ranks for _ in range(2 + rank)]
        assert said["grouped"] == several
        assert said["scaled"] == [[2 * value for value in tensor] for tensor in several]
        assert all(value == [size, 2 * size, sum(ranks)] for value in said["types"].values())
        assert all(value == [size, 2 * size, 3 * size] for value in said["scaled types"].values())


@pytest.mark.parametrize("dead", [0, 1, 2])
def test_a_killed_peer_ends_no_survivor_and_no_sum_is_taken_for_good(lab: Lab, dead: int) -> None:
    ring = lab.workers(3)
    lab.form(ring)
    for worker in ring:
        worker.tell("device_sum_until_failure", elements=50_000)
    threading.Event().wait(0.05)
    ring.pop(dead).kill()
    for worker in ring:
        fails(worker)
    whatever_is_left_re_forms(lab, ring)


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_a_frozen_peer_is_left_behind_on_request(lab: Lab, frozen: int) -> None:
    ring = lab.workers(3)
    lab.form(ring)
    for worker in ring:
        worker.tell("device_sum_until_failure", elements=50_000)
    threading.Event().wait(0.05)
    silent = ring.pop(frozen)
    silent.freeze()
    threading.Event().wait(0.2)
    for worker in ring:
        worker.tell("abort")
    for worker in ring:
        fails(worker)
    whatever_is_left_re_forms(lab, ring)
    silent.thaw()
    fails(silent)
    silent.ask("shutdown").good()
    lab.leave(ring)
    lab.form([*ring, silent])


def test_an_abort_of_this_generation_ends_a_sum_that_waits_for_a_peer(lab: Lab) -> None:
    """Rank 1 never asks for the sum: the others wait in the negotiation, and nobody hears of it."""
    ring = lab.workers(3)
    lab.form(ring)
    for worker in (ring[0], ring[2]):
        worker.tell("device_sum_until_failure", elements=10)
        worker.tell("abort_generation", generation=lab.generation)
    for worker in (ring[0], ring[2]):
        fails(worker)
    whatever_is_left_re_forms(lab, ring)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_peer_that_is_lost_before_the_communicator_exists_is_given_up_on_request(
    lab: Lab, lost: int
) -> None:
    """The first sum of a ring makes the communicator; the peer says that it will sum, then is frozen."""
    for round_ in range(3):
        ring = lab.workers(2)
        store = lab.store(2)
        lab.tell_init(ring, store)
        for worker in ring:
            worker.answer().good()
        for worker in ring:
            worker.tell("device_sum_until_failure", elements=100_000)
        threading.Event().wait(0.002 * round_)
        silent = ring.pop(lost)
        silent.freeze()
        threading.Event().wait(0.1)
        (other,) = ring
        other.tell("abort")
        fails(other)
        whatever_is_left_re_forms(lab, [other])
        silent.kill()
        silent.thaw()


def test_a_ring_is_left_and_formed_again_while_another_is_prepared(lab: Lab) -> None:
    ring = lab.workers(3)
    lab.form(ring)
    for size in (2, 3, 1, 3):
        part = ring[:size]
        store = lab.store(size)
        lab.tell_prepare(part, store)
        for worker in part:
            worker.tell("prepared")
        for worker in part:
            assert worker.answer().good()
        lab.leave(ring)
        lab.take(part, store)
        ring = [*part, *lab.workers(3 - size)]
        if size < 3:
            lab.leave(part)
            lab.form(ring)


def resources_of(lab: Lab, rounds: int) -> tuple[dict[str, int], dict[str, int]]:
    """What a worker holds after some re-forms and after many more, half of them after an abort."""
    ring = lab.workers(2)
    seen = []
    for wanted in (10, rounds):
        for number in range(wanted):
            lab.form(ring)
            if number % 2:
                for worker in ring:
                    worker.tell("device_sum_until_failure", elements=1000)
                threading.Event().wait(0.005)
                for worker in ring:
                    worker.tell("abort")
                for worker in ring:
                    fails(worker)
            lab.leave(ring)
        seen.append(ring[0].ask("resources").good())
    return seen[0], seen[1]


def nothing_grew(few: dict[str, int], many: dict[str, int], rounds: int) -> None:
    assert many["fds"] <= few["fds"] + 2
    assert many["threads"] <= few["threads"] + 2
    # A stream, a communicator or an event that stays behind is some kilobytes each time.
    assert many["rss_kb"] < few["rss_kb"] + 5000 + 2 * rounds


def test_nothing_is_left_behind_by_many_re_forms(lab: Lab) -> None:
    nothing_grew(*resources_of(lab, 60), 60)


@pytest.mark.soak
def test_nothing_is_left_behind_by_thousands_of_re_forms(lab: Lab) -> None:
    nothing_grew(*resources_of(lab, 2000), 2000)
