"""What one worker went through, out of everything that happened."""

from __future__ import annotations

from edl_allreduce.core import event_data
from edl_allreduce.core.causes import Cause
from edl_allreduce.core.job import inbox
from edl_allreduce.core.status import EventRecord
from edl_allreduce.core.story import lives, story
from edl_allreduce.testing.scene import Scene


def recorded(scene: Scene) -> list[EventRecord]:
    return [
        EventRecord(serial, 100.0 + serial, event.kind, event.text(), event_data.to_data(event))
        for serial, event in enumerate(scene.events, 1)
    ]


def eventful() -> list[EventRecord]:
    scene = Scene().train().wait(5)
    scene.crash(1, Cause.DISRUPTED, "was ended by SIGKILL").until(lambda: scene.ring == 2)
    return recorded(scene.give(inbox.Stop("asked")))


def test_the_life_of_a_worker_that_was_killed():
    told = [(record.kind, record.text) for record in story(eventful(), 1)]
    assert [kind for kind, _ in told] == ["launch", "hello", "ready", "plan", "plan", "exit"]
    assert told[-2][1] == "generation 3: workers 0, because worker 1 was ended by SIGKILL"
    assert told[-1] == ("exit", "worker 1 was ended by SIGKILL")


def test_the_life_of_one_that_lived_to_the_end():
    told = [record.kind for record in story(eventful(), 2)]
    assert told[:3] == ["launch", "hello", "ready"] and told[-1] == "end"


def test_nobody_has_no_story():
    assert story(eventful(), 77) == []
    assert story([EventRecord(1, 0.0, "launch", "worker 1 starts")], 1) == [], "of a version without facts"


def test_all_lives_in_a_few_numbers():
    first, second, third = lives(eventful())
    assert [life.worker_id for life in (first, second, third)] == [0, 1, 2]
    assert second.end == "was ended by SIGKILL" and second.ended is not None and second.ready is not None
    assert second.ended > second.ready > second.began
    assert first.rings == 4 and third.rings == 1 and third.end == ""


def test_an_eviction_is_told_with_its_cause():
    scene = Scene().train().freeze(1)
    scene.until(lambda: scene.told("evict")).wait(5)
    life = lives(recorded(scene))[1]
    assert life.end.startswith("evicted (silent): sent no heartbeat for")
