"""The next ring is connected while the present one works."""

from __future__ import annotations

import threading

import pytest
from ring_lab import Absent, Lab
from ring_store import Request

from edl_allreduce import clock

pytestmark = pytest.mark.training


def test_members_sum_while_they_connect_to_a_newcomer(lab: Lab) -> None:
    *ring, newcomer = lab.workers(3)
    lab.form(ring)
    store = lab.store(3)
    lab.tell_prepare([*ring, newcomer], store)
    for worker in ring:
        worker.tell("allreduce_until_failure", elements=1000, most=100)
    assert [worker.answer().good() for worker in ring] == [100, 100]
    assert all(worker.ask("prepared").good() for worker in [*ring, newcomer])
    lab.leave(ring)
    lab.take([*ring, newcomer], store)


def test_a_newcomer_that_does_not_come_holds_nobody(lab: Lab) -> None:
    ring = lab.workers(2)
    lab.form(ring)
    store = lab.store(3)
    lab.tell_prepare([*ring, Absent()], store)
    for worker in ring:
        worker.tell("allreduce_until_failure", elements=1000, most=100)
    assert [worker.answer().good() for worker in ring] == [100, 100]
    store.supersede()
    assert not any(worker.ask("prepared").good() for worker in ring)
    for worker in ring:
        worker.tell("sum", values=[1.0])
    assert [worker.answer().good() for worker in ring] == [[2.0], [2.0]], "the present ring has no part in it"
    lab.leave(ring)
    lab.form(ring)


def test_an_abort_ends_the_preparation_and_the_ring_beside_it(lab: Lab) -> None:
    ring = lab.workers(2)
    lab.form(ring)
    store = lab.store(3)
    lab.tell_prepare([*ring, Absent()], store)
    for worker in ring:
        worker.tell("abort")
    assert not any(worker.ask("prepared").good() for worker in ring)
    for worker in ring:
        assert worker.ask("sum", values=[1.0]).error
    lab.leave(ring)
    lab.form(ring)


def test_an_abort_of_what_is_over_does_not_reach_the_next_preparation(lab: Lab) -> None:
    newcomers = lab.workers(2)
    asked = threading.Barrier(3)  # what comes before a preparation is not meant for it
    store = lab.store(3, on_request=lambda request: asked.wait(20) if request.number == 1 else None)
    lab.tell_prepare([*newcomers, Absent()], store)
    asked.wait(20)
    for worker in newcomers:
        worker.tell("abort")
    assert not any(worker.ask("prepared").good() for worker in newcomers)
    store = lab.store(2)
    lab.tell_prepare(newcomers, store)
    assert all(worker.ask("prepared").good() for worker in newcomers)
    lab.take(newcomers, store)


def test_another_ring_than_the_prepared_one_is_formed_anew(lab: Lab) -> None:
    *ring, newcomer = lab.workers(3)
    lab.form(ring)
    lab.tell_prepare([*ring, newcomer], lab.store(3))
    assert all(worker.ask("prepared").good() for worker in [*ring, newcomer])
    lab.leave(ring)
    lab.form(ring)


@pytest.mark.parametrize("rank", [0, 2], ids=["a member", "the newcomer"])
def test_a_kill_at_any_request_of_a_preparation_is_survived(lab: Lab, rank: int) -> None:
    for number in (1, 2):
        *ring, _newcomer = workers = lab.workers(3)
        lab.form(ring)
        victim, fired = workers[rank], threading.Event()

        def fault(request: Request, victim=victim, number=number, fired=fired) -> None:
            if request.rank == rank and request.number == number:
                victim.kill()
                lab.exit_of(victim)
                fired.set()

        store = lab.store(3, on_request=fault)
        lab.tell_prepare(workers, store)
        assert fired.wait(10), f"request {number} never came"
        survivors = [worker for worker in workers if worker is not victim]
        # What a master does: another plan, which dooms this one and what came before it.
        store.supersede()
        for worker in survivors:
            worker.tell("abort")
        for worker in survivors:
            worker.ask("prepared").good()
        lab.leave([worker for worker in ring if worker is not victim])
        lab.form(survivors)


def test_preparations_that_nobody_takes_leak_nothing(lab: Lab) -> None:
    ring = lab.workers(2)
    before = []
    for number in range(30):
        lab.form(ring)
        lab.tell_prepare(ring, lab.store(2))
        assert all(worker.ask("prepared").good() for worker in ring)
        lab.leave(ring)
        if number == 5:
            before = [worker.ask("resources").good() for worker in ring]
    for worker, first in zip(ring, before, strict=True):
        for _ in clock.polls(0.1, within=20):  # a thread of the last ring may still be ending
            last = worker.ask("resources").good()
            if last["threads"] <= first["threads"]:
                break
        assert last["fds"] <= first["fds"] and last["threads"] <= first["threads"], (first, last)


def test_everybody_learns_a_row_of_everybody(lab: Lab) -> None:
    ring = lab.workers(3)
    lab.form(ring)
    for _ in range(20):  # with collectives between: neither disturbs the other
        for rank, worker in enumerate(ring):
            worker.tell("exchange", values=[rank, 100 + rank])
        assert [worker.answer().good() for worker in ring] == [[0, 100, 1, 101, 2, 102]] * 3
        for worker in ring:
            worker.tell("sum", values=[1.0])
        assert [worker.answer().good() for worker in ring] == [[3.0]] * 3


def test_one_rank_sends_much_to_another_while_the_third_waits_in_a_sum(lab: Lab) -> None:
    ring = lab.workers(3)
    lab.form(ring)
    count = 4_000_000
    ring[1].tell("sum", values=[1.0])
    ring[0].tell("send", rank=2, count=count)
    assert ring[2].ask("receive", rank=0, count=count).good() == count * (count - 1) // 2
    ring[0].answer().good()
    for rank in (0, 2):
        ring[rank].tell("sum", values=[1.0])
    assert [worker.answer().good() for worker in ring] == [[3.0]] * 3


@pytest.mark.parametrize("how", ["kill", "abort"])
def test_who_waits_for_a_message_of_a_lost_peer_goes_on_with_an_error(lab: Lab, how: str) -> None:
    waiting, lost = ring = lab.workers(2)
    lab.form(ring)
    waiting.tell("exchange", values=[1])
    if how == "kill":
        lost.kill()
    else:
        waiting.tell("abort")
    assert "exchange failed" in (waiting.answer().error or "no error")
    assert waiting.ask("failure").good()
    waiting.ask("shutdown").good()
    lab.form([waiting])


def test_a_peer_that_has_much_to_do_before_its_message_is_waited_for(lab: Lab) -> None:
    """Longer than Gloo waits in a collective: an evaluation, or a checkpoint that is read."""
    quick, slow = ring = lab.workers(2)
    lab.form(ring, HOROVOD_GLOO_TIMEOUT_SECONDS="1")
    quick.tell("exchange", values=[1])
    clock.sleep(3)
    assert slow.ask("exchange", values=[2]).good() == [1, 2]
    assert quick.answer().good() == [1, 2]


def test_who_waits_for_a_message_of_a_frozen_peer_goes_on_when_the_ring_gives_it_up(lab: Lab) -> None:
    waiting, frozen = ring = lab.workers(2)
    lab.form(ring, HOROVOD_GLOO_TIMEOUT_SECONDS="2")
    waiting.tell("exchange", values=[1])
    frozen.freeze()
    assert "exchange failed" in (waiting.answer().error or "no error")
    waiting.ask("shutdown").good()
    lab.form([waiting])
    frozen.thaw()
