"""The Lease: at most one acts, a frozen one is fenced, and the next one begins where it stopped."""

from __future__ import annotations

import asyncio
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_allreduce.controller.election import NotLeading
from edl_allreduce.core.controller import lease
from edl_allreduce.core.controller.lease import Create, Follow, Lease, Standing, Take
from tests.controller.conftest import Lab


class Server:
    """The Lease alone, with its versions."""

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self.version = 0

    def write(self, wanted: Lease, over: str) -> Lease | None:
        if over != (self.lease.version if self.lease is not None else ""):
            return None
        self.version += 1
        self.lease = Lease(wanted.holder, wanted.term, str(self.version), wanted.duration)
        return self.lease


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.floats(0, 12), st.floats(0, 12), st.booleans()), max_size=60
    )
)
def test_however_they_are_delayed_no_two_lead_at_once_and_terms_only_grow(steps):
    """Each step: who looks, how long before, how long until its write arrives, whether the write is lost."""
    server, now, terms = Server(), 0.0, []
    standings = {name: Standing(name) for name in "abc"}
    for name, before, delay, lost in steps:
        now += before
        looked_at = now
        standing = lease.seen(standings[name], server.lease, looked_at)
        over = standing.seen.version if standing.seen is not None else ""
        decision = lease.decide(standing, looked_at)
        now += delay
        if isinstance(decision, Create | Take) and not lost:
            written = server.write(decision.lease, over)
            if written is not None:
                standing = lease.written(standing, written, looked_at)
                terms.append(written.term)
        standings[name] = standing
        assert sum(one.leads(now) for one in standings.values()) <= 1
    assert terms == sorted(terms)


def test_a_follower_waits_as_long_as_the_leader_promised_and_then_says_why():
    held = Lease("a", 3, "7")
    standing = lease.seen(Standing("b"), held, 100.0)
    assert isinstance(lease.decide(standing, 114.0), Follow)
    taken = lease.decide(lease.seen(standing, held, 115.0), 115.0)
    assert isinstance(taken, Take) and taken.lease.term == 4
    assert taken.why == "a has not renewed for 15 s"


def test_one_that_could_not_renew_in_time_leads_again_only_in_a_new_term():
    mine = lease.written(Standing("a"), Lease("a", 3, "7"), 100.0)
    assert mine.leads(109.9) and not mine.leads(110.0)
    again = lease.decide(mine, 112.0)
    assert isinstance(again, Take) and again.lease.term == 4


def test_a_leader_that_steps_down_is_followed_at_once(lab: Lab, play):
    async def story():
        first, second = lab.controller("a"), lab.controller("b")
        await lab.turn(first)
        await lab.turn(second)
        assert first.election.leads and not second.election.leads
        await first.election.step_down()
        await lab.turn(second)
        assert second.election.leads and second.election.term == 2

    play(story())


@pytest.mark.parametrize("frozen_in", ["its decision", "its request"])
def test_what_a_frozen_leader_had_begun_does_not_reach_the_cluster(lab: Lab, play, frozen_in):
    """It is frozen after its last check, or with its request on the way; another one has taken over since."""

    async def story():
        first, second = lab.controller("a"), lab.controller("b", policy=None)
        job = lab.job(high=7)
        await lab.turn(first)
        lab.works(size=4, step_seconds={4: 1.0, 7: 0.5})
        await lab.turn(second)
        frozen, thawed = threading.Event(), threading.Event()
        sent: list[tuple[str, str]] = []

        def freeze(method: str, path: str) -> None:
            if threading.current_thread().name.startswith("write") and not thawed.is_set():
                sent.append((method, path))
                frozen.set()
                assert thawed.wait(30)

        if frozen_in == "its request":
            lab.api.before = freeze
        term = first.election.term
        lab.refresh(first)
        late = asyncio.create_task(first.round()) if frozen_in == "its request" else None
        if late is not None:
            await asyncio.to_thread(frozen.wait, 30)
            assert sent, "it was about to write"
        for _ in range(3):
            await lab.clock.advance(8)
            await second.election.step()
        lab.api.before = lambda method, path: None
        assert second.election.leads and second.election.term == term + 1
        lab.refresh(second)
        await second.round()
        assert lab.orders() == lab.orders().__class__(7, (), "", term + 1)
        after = lab.api.get(job), lab.master()
        thawed.set()
        if late is not None:
            await late
            assert first.hands.conflicts >= 1, "the API server refused what was on the way"
        else:
            with pytest.raises(NotLeading):
                first.election.check(term)
            await first.round()
        assert (lab.api.get(job), lab.master()) == after

    play(story())


def test_orders_are_followed_though_somebody_deleted_the_lease_and_terms_begin_anew(lab: Lab, play):
    async def story():
        first = lab.controller("a")
        job = lab.job()
        await lab.turn(first)
        await first.election.step_down()
        second = lab.controller("b")
        await lab.turn(second)
        lab.works()
        found = lab.api.get(job)
        lab.api.replace(
            job, {**found, "spec": {**found["spec"], "workers": {**found["spec"]["workers"], "replicas": 2}}}
        )
        await lab.turn(second)
        assert (lab.orders().workers, lab.orders().term) == (2, 2)
        (lease,) = lab.api.all("leases")
        lab.api.remove(f"/apis/coordination.k8s.io/v1/namespaces/system/leases/{lease['metadata']['name']}")
        found = lab.api.get(job)
        lab.api.replace(job, {**found, "spec": {**found["spec"], "suspend": True}})
        await lab.turn(second)
        assert second.election.term == 1
        assert lab.orders().stop and lab.orders().term == 2, "a master drops orders of an earlier term"

    play(story())
