"""Peers that fall silent close no connection: only an order to give up, or a deadline, helps the others."""

from __future__ import annotations

import threading

import pytest
from ring_lab import Absent, Lab

from edl_allreduce import clock

pytestmark = pytest.mark.training


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_a_frozen_peer_is_left_behind_on_request(lab: Lab, frozen: int) -> None:
    ring = lab.workers(3)
    lab.form(ring)
    for worker in ring:
        worker.tell("allreduce_until_failure", elements=50_000)
    clock.sleep(0.05)
    silent = ring.pop(frozen)
    silent.freeze()
    clock.sleep(0.2)
    for worker in ring:
        worker.tell("abort")
    for worker in ring:
        assert "Error" in (worker.answer().error or "no error")
    lab.leave(ring)
    lab.form(ring)
    # When it comes back it finds its ring gone, and can join a new one.
    silent.thaw()
    assert silent.answer().error
    silent.ask("shutdown").good()
    lab.leave(ring)
    lab.form([*ring, silent])


def test_an_init_that_waits_for_the_store_ends_on_request(lab: Lab) -> None:
    (worker,) = lab.workers(1)
    asked = threading.Event()
    lab.tell_init([worker, Absent()], lab.store(2, on_request=lambda request: asked.set()))
    assert asked.wait(10)
    worker.tell("abort")
    assert "initialization failed" in (worker.answer().error or "no error")
    assert "Aborted on request" in worker.ask("failure").good()
    lab.form([worker])


def test_an_init_at_a_store_that_says_nothing_ends_on_request(lab: Lab) -> None:
    (worker,) = lab.workers(1)
    asked = threading.Event()
    lab.tell_init([worker, Absent()], lab.store(2, silent=True, on_request=lambda request: asked.set()))
    assert asked.wait(10)
    worker.tell("abort")
    assert "initialization failed" in (worker.answer().error or "no error")
    lab.form([worker])


def test_an_init_that_waits_for_a_connection_ends_on_request(lab: Lab) -> None:
    """The peer has published its address and then fell silent: the kernel accepts, nobody answers."""
    ring = lab.workers(2)
    for frozen in (0, 1):
        published = threading.Event()
        silent, other = ring[frozen], ring[1 - frozen]

        def freeze(request, silent=silent, frozen=frozen, published=published):
            if request.rank == frozen and request.method == "GET":
                silent.freeze()
                published.set()

        lab.tell_init(ring, lab.store(2, on_request=freeze))
        assert published.wait(10)
        clock.sleep(0.2)
        other.tell("abort")
        assert "initialization failed" in (other.answer().error or "no error")
        silent.thaw()
        # A peer that left before it could prove itself looks like a stranger: the master tells.
        silent.tell("abort")
        answer = silent.answer()
        if answer.error is None:
            silent.ask("shutdown").good()
        lab.form(ring)
        lab.leave(ring)


def test_an_abort_of_an_idle_ring_breaks_its_next_collective(lab: Lab) -> None:
    ring = lab.workers(2)
    lab.form(ring)
    ring[0].tell("abort")
    for worker in ring:
        assert worker.ask("sum", values=[1.0]).error
    lab.leave(ring)
    lab.form(ring)


def test_an_abort_reaches_a_world_of_one(lab: Lab) -> None:
    (worker,) = lab.workers(1)
    lab.form([worker])
    worker.tell("abort")
    assert worker.ask("allreduce_until_failure", elements=1).error
    lab.leave([worker])
    lab.form([worker])


def test_an_abort_by_generation_hits_only_what_is_old(lab: Lab) -> None:
    ring = lab.workers(2)
    lab.form(ring, HOROVOD_EDL_GENERATION="1007")
    for worker in ring:
        worker.tell("abort_generation", generation=1006)
    for worker in ring:
        worker.tell("sum", values=[1.0])
    assert [worker.answer().good() for worker in ring] == [[2.0], [2.0]]
    for worker in ring:
        worker.tell("abort_generation", generation=1007)
    for worker in ring:
        assert worker.ask("sum", values=[1.0]).error
    lab.leave(ring)
    # It came too early for the next init of that generation, and counts all the same.
    lab.tell_init(ring, lab.store(2), HOROVOD_EDL_GENERATION="1007")
    for worker in ring:
        assert "initialization failed" in (worker.answer().error or "no error")
    lab.form(ring, HOROVOD_EDL_GENERATION="1008")
