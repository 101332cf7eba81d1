"""What `kubectl describe` tells of a job: few Events of its master's pod, and a short state on it."""

from __future__ import annotations

import asyncio
import json

import pytest

from edl_allreduce.cluster.kubernetes import events as module
from edl_allreduce.cluster.kubernetes.events import (
    BURST,
    Allowance,
    Announcement,
    Recorder,
    allowed,
    announcements,
)
from edl_allreduce.core import event_data, events
from edl_allreduce.core.goodput import GoodputReport
from edl_allreduce.core.status import EventRecord
from edl_allreduce.errors import ApiRefused
from edl_allreduce.testing.clock import FakeClock
from tests.terminal.statuses import status

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "elasticdl-digits-master", "namespace": "ml", "uid": "u-1", "labels": {"a": "b"}},
}


class Server:
    """An API server that keeps what it is given."""

    def __init__(self, refuses: int = 0) -> None:
        self.refuses = refuses
        self.asked = 0
        self.events: dict[str, dict] = {}
        self.pod: dict = {}

    def create(self, path: str, body: dict) -> dict:
        self.asked += 1
        if self.refuses:
            raise ApiRefused("not allowed", status=self.refuses)
        assert path == "/api/v1/namespaces/ml/events"
        name = body["metadata"]["name"]
        assert name not in self.events, "an object is created once"
        self.events[name] = json.loads(json.dumps(body))
        return body

    def patch(self, path: str, change: dict) -> dict:
        if path.endswith("/pods/elasticdl-digits-master"):
            self.pod = change
        elif path.rpartition("/")[2] not in self.events:
            raise ApiRefused("not found", status=404)
        else:
            self.events[path.rpartition("/")[2]] |= change
        return change

    @property
    def told(self) -> list[tuple[str, str]]:
        return [(event["reason"], event["type"]) for event in self.events.values()]


def records(*told: events.Event) -> list[EventRecord]:
    return [
        EventRecord(number, 100.0 + number, event.kind, event.text(), event_data.to_data(event))
        for number, event in enumerate(told)
    ]


def recorder(server: Server, clock: FakeClock) -> Recorder:
    seen = status(goodput=GoodputReport(10.0, {"productive_step": 8.0}))
    return Recorder(server, [POD], lambda: seen, clock)  # type: ignore[arg-type]


LIFE = (
    events.WorkerLaunched(0), events.WorkerLaunched(1), events.WorkerConnected(0, "host"),
    events.RingPlanned(1, (0, 1), True, "2 workers are ready", "first"),
    events.WorkerExited(1, "disrupted", "was preempted by another pod"),
    events.WorkerExited(3, "out of memory", "ran out of memory"),
    events.RingPlanned(2, (0,), True, "worker 1 is gone", "loss"),
    events.RingReformed(0, 2, 1, 0.0, 0.0, 0.05, 0.0, 0.01),
    events.CheckpointWritten(0, 10, "gs://bucket/ckpt"), events.ModelEvaluated(10, {"accuracy": 0.5}),
    events.JobEnded("Succeeded", "200 steps"),
)  # fmt: skip


def test_the_life_of_a_job_in_the_words_of_kubernetes():
    told = announcements(records(*LIFE))
    assert [(t.reason, t.kind) for t in told] == [
        ("WorkerLaunched", "Normal"),
        ("WorkersJoined", "Normal"),
        ("WorkerDisrupted", "Warning"),
        ("WorkerDied", "Warning"),
        ("RingReformed", "Normal"),
        ("Checkpoint", "Normal"),
        ("Evaluated", "Normal"),
        ("Succeeded", "Normal"),
    ]
    assert told[0].message == "workers 0, 1 start", "what happens at once is one Event"
    assert told[2].message == "worker 1 was preempted by another pod"
    assert told[4].message == "worker 0 goes on in generation 2 after 0.060 s"


def test_every_cause_of_an_end_has_a_reason():
    from edl_allreduce.core.causes import Cause

    for cause in Cause:
        assert module.reason_of(events.WorkerExited(1, cause.value, "ended")) is not None


def test_they_are_objects_that_the_api_server_takes():
    server, clock = Server(), FakeClock(wall=1000.0)

    async def story() -> None:
        made = recorder(server, clock)
        for record in records(*LIFE):
            made.tell(record)
        await made.flush()

    asyncio.run(story())
    first = next(iter(server.events.values()))
    assert first["involvedObject"] == {
        "apiVersion": "v1", "kind": "Pod", "name": "elasticdl-digits-master", "namespace": "ml", "uid": "u-1",
    }  # fmt: skip
    assert first["firstTimestamp"] == "1970-01-01T00:01:40Z" and first["count"] == 1
    assert len(server.events) == 8 and all(len(e["message"]) < 1024 for e in server.events.values())


def test_the_same_again_is_counted_and_not_told_again():
    server, clock = Server(), FakeClock(wall=1000.0)

    async def story() -> None:
        made = recorder(server, clock)
        for _ in range(5):
            made.tell(records(events.JobWaits("for 2 workers"))[0])
            await made.flush()

    asyncio.run(story())
    (event,) = server.events.values()
    assert event["count"] == 5


def test_a_flood_is_bounded_and_what_matters_most_comes_first():
    flood = [Announcement("Checkpoint", f"step {i}") for i in range(500)]
    flood += [Announcement("WorkerDied", "worker 3", "Warning"), Announcement("Failed", "why", "Warning")]
    now, later, allowance = allowed(flood, Allowance())
    assert len(now) == BURST and {"WorkerDied", "Failed"} <= {told.reason for told in now}
    assert len(later) == module.MOST_PENDING and int(allowance.tokens) == 0
    assert int(allowance.refilled(1000.0).refilled(1000.0 + 5 * module.REFILL_SECONDS).tokens) == 5
    assert allowed(later, allowance)[0] == []


@pytest.mark.parametrize(("status_code", "asked"), [(403, 1), (409, 8)])
def test_a_refusal_ends_nothing_and_is_told_once(status_code, asked, caplog):
    server, clock = Server(refuses=status_code), FakeClock(wall=1000.0)

    async def story() -> None:
        made = recorder(server, clock)
        for record in records(*LIFE):
            made.tell(record)
        await made.flush()
        await made.close()

    asyncio.run(story())
    assert server.asked == asked
    assert [r.message for r in caplog.records if "no Events" in r.message] != [] or status_code != 403
    assert server.pod, "the state on the pod needs another right"


def test_the_pod_says_how_the_job_is():
    server, clock = Server(), FakeClock(wall=1000.0)
    asyncio.run(recorder(server, clock).flush())
    meta = server.pod["metadata"]
    assert meta["labels"] == {"elasticdl-phase": "Training", "elasticdl-ring": "2-of-2"}
    assert meta["annotations"] == {
        "elasticdl.org/state": "Training: step 100 of 200; ring 2 of 2, generation 3; loss 0.25; goodput 80 %"
    }


def test_the_end_of_a_job_is_told_when_nothing_more_may_be_told():
    server = Server()
    told = recorder(server, FakeClock())
    told._allowance = Allowance(0.0)
    for record in records(events.WorkerLaunched(0), events.JobEnded("Succeeded", "")):
        told.tell(record)
    asyncio.run(told.close())
    assert server.told == [("Succeeded", "Normal")]


def test_an_event_that_kubernetes_forgot_is_made_anew():
    server = Server()
    told = recorder(server, FakeClock())

    async def scenario() -> None:
        for record in records(events.CheckpointMissing(0, 30, "there", "the disk is full")):
            told.tell(record)
            await told.flush()
            server.events.clear()
            told.tell(record)
            await told.flush()

    asyncio.run(scenario())
    (event,) = server.events.values()
    assert (event["reason"], event["count"]) == ("CheckpointFailed", 2)
