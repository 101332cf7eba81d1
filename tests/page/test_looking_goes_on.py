"""Those who look at a job again and again: one look that fails is not the last."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from edl_allreduce.cluster.kubernetes.events import GATHER_SECONDS, STATE_SECONDS, Recorder
from edl_allreduce.core import events
from edl_allreduce.core.status import JobStatus
from edl_allreduce.master.metrics import LOOK_SECONDS, Metrics
from edl_allreduce.master.web import feed as module
from edl_allreduce.master.web.feed import Feed
from edl_allreduce.testing.clock import FakeClock
from tests.page.builders import history
from tests.pods.test_events_of_kubernetes import POD, Server
from tests.terminal.statuses import status


class FailsFirst:
    """A question whose first answer is a bug."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self) -> JobStatus:
        self.asked += 1
        if self.asked == 1:
            raise KeyError("a bug")
        return status()


def metrics(ask: Callable[[], JobStatus], clock: FakeClock) -> object:
    return Metrics(ask, clock=clock)


def feed(ask: Callable[[], JobStatus], clock: FakeClock) -> object:
    return Feed(ask, clock=clock)


def recorder(ask: Callable[[], JobStatus], clock: FakeClock) -> object:
    return Recorder(Server(), [POD], ask, clock)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [metrics, feed, recorder])
def test_the_second_look_comes_after_one_that_failed(make, monkeypatch, caplog):
    monkeypatch.setattr(module, "BEAT_SECONDS", 0.001)
    ask, clock = FailsFirst(), FakeClock(wall=100.0)

    async def scenario() -> None:
        looks = make(ask, clock)
        looks.start()
        while ask.asked < 2:
            assert not looks._task.done(), "it looks no more"
            await clock.advance(max(LOOK_SECONDS, GATHER_SECONDS, STATE_SECONDS))
            await asyncio.sleep(0.002)
        looks._task.cancel()

    asyncio.run(scenario())
    assert caplog.text.count("KeyError: 'a bug'") == 1


def test_who_knows_more_than_the_master_gets_everything_anew():
    kept = Feed(status, history=history((0.0, events.WorkerLaunched(0)), (1.0, events.WorkerReady(0))))
    again = kept.update(since=700)
    assert again.serial == 2 and len(again.events) == 2 and again.lanes and again.about
