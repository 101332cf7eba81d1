"""A peer dies, anywhere: the survivors get an error, none crashes, none hangs, and they form a new ring."""

from __future__ import annotations

import random
import threading

import pytest
from ring_lab import Absent, Lab, Worker
from ring_store import Request

from edl_allreduce import clock

pytestmark = pytest.mark.training


def break_and_form_again(lab: Lab, survivors: list[Worker]) -> None:
    """Each survivor reports its broken collective and leaves; then they form the next ring together."""
    for worker in survivors:
        assert "Error" in (worker.answer().error or "no error")
    lab.leave(survivors)
    lab.form(survivors)


@pytest.mark.parametrize("elements", [1, 300_000], ids=["tiny", "megabyte"])
@pytest.mark.parametrize("size", [2, 3, 10])
def test_a_kill_in_a_collective_leaves_the_others_with_an_error(lab: Lab, size: int, elements: int) -> None:
    choose = random.Random(size * elements)
    ring = lab.workers(size)
    lab.form(ring)
    while len(ring) > 1:
        for worker in ring:
            worker.tell("allreduce_until_failure", elements=elements)
        victim = ring.pop(choose.randrange(len(ring)))
        clock.sleep(choose.uniform(0.01, 0.1))
        victim.kill()
        break_and_form_again(lab, ring)


def test_two_at_once(lab: Lab) -> None:
    ring = lab.workers(5)
    lab.form(ring)
    for worker in ring:
        worker.tell("allreduce_until_failure", elements=1000)
    clock.sleep(0.05)
    for victim in (ring.pop(0), ring.pop(2)):
        victim.kill()
    break_and_form_again(lab, ring)


def test_a_kill_while_everybody_is_idle_breaks_the_next_collective(lab: Lab) -> None:
    ring = lab.workers(3)
    lab.form(ring)
    ring.pop(0).kill()
    for worker in ring:
        worker.tell("sum", values=[1.0])
    break_and_form_again(lab, ring)


def requests_of_an_init(lab: Lab, size: int, rank: int) -> int:
    workers = lab.workers(size)
    store = lab.store(size)
    lab.tell_init(workers, store)
    for worker in workers:
        worker.answer().good()
    return sum(request.rank == rank for request in store.requests)


@pytest.mark.parametrize("rank", [0, 1, 2], ids=["first", "middle", "last"])
def test_a_kill_at_any_request_of_init_is_survived(lab: Lab, rank: int) -> None:
    size = 3
    for number in range(1, requests_of_an_init(lab, size, rank) + 1):
        workers = lab.workers(size)
        victim = workers[rank]
        fired = threading.Event()

        def fault(
            request: Request, victim: Worker = victim, number: int = number, fired: threading.Event = fired
        ) -> None:
            if request.rank == rank and request.number == number:
                victim.kill()
                lab.exit_of(victim)
                fired.set()

        store = lab.store(size, on_request=fault)
        lab.tell_init(workers, store)
        assert fired.wait(10), f"request {number} never came"
        # What a master does: close the store of that ring, and tell its members to give it up. Who waits
        # for a connection that the victim would have made learns of its end in no other way.
        store.supersede()
        survivors = [worker for worker in workers if worker is not victim]
        for worker in survivors:
            worker.tell("abort")
        for worker in survivors:
            answer = worker.answer()
            if answer.error is None:
                # The victim had done its part of the rendezvous: the ring stood, and breaks at first use.
                assert "Error" in (worker.ask("sum", values=[1.0]).error or "no error")
                worker.ask("shutdown").good()
            else:
                assert answer.error.startswith("ValueError: Horovod initialization failed")
                assert worker.ask("failure").good() != ""
        lab.form(survivors)


def test_a_peer_that_never_comes_is_given_up_when_the_store_is_superseded(lab: Lab) -> None:
    there = lab.workers(2)
    asked = threading.Event()
    store = lab.store(3, on_request=lambda request: asked.set())
    lab.tell_init([*there, Absent()], store)
    assert asked.wait(10)
    store.supersede()
    for worker in there:
        assert "initialization failed" in (worker.answer().error or "no error")
        assert "410" in worker.ask("failure").good()
    lab.form(there)


def test_a_failed_init_can_be_repeated_without_shutdown(lab: Lab) -> None:
    workers = lab.workers(2)
    for _ in range(5):
        store = lab.store(2)
        store.supersede()
        lab.tell_init(workers, store)
        for worker in workers:
            assert "initialization failed" in (worker.answer().error or "")
    lab.form(workers)


def test_many_re_forms_leak_nothing(lab: Lab) -> None:
    ring = lab.workers(3)
    lab.form(ring)
    for _ in range(5):
        lab.leave(ring)
        lab.form(ring)
    before = [worker.ask("resources").good() for worker in ring]
    for _ in range(40):
        lab.leave(ring)
        lab.form(ring)
    for worker, first in zip(ring, before, strict=True):
        last = worker.ask("resources").good()
        assert last["fds"] <= first["fds"] and last["threads"] <= first["threads"], (first, last)
        assert last["rss_kb"] - first["rss_kb"] < 20_000, (first, last)


def test_failed_inits_leak_nothing(lab: Lab) -> None:
    (worker,) = lab.workers(1)
    lab.form([worker])
    lab.leave([worker])
    before = worker.ask("resources").good()
    for _ in range(30):
        store = lab.store(2)
        store.supersede()
        lab.tell_init([worker, Absent()], store)
        assert worker.answer().error
    last = worker.ask("resources").good()
    assert last["fds"] <= before["fds"] and last["threads"] <= before["threads"], (before, last)
