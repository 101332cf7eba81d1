"""Who has the token is heard. What it says is checked against who it is, and where the job stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from edl_allreduce.core import protocol
from edl_allreduce.core.job import inbox, talk
from edl_allreduce.core.job.keeping import MOST_WORKERS, refusal_to_scale
from edl_allreduce.core.job.lifecycle import Phase
from edl_allreduce.core.protocol import Seat
from edl_allreduce.errors import BadMessage
from edl_allreduce.rpc import codec
from edl_allreduce.testing.scene import OPTIONS, READY, Scene

FLOOD_IS_FORGIVEN = 2 * talk.MOST / talk.LETTERS_PER_SECOND
PULLED = replace(OPTIONS, task_records=50)


def watched(scene: Scene) -> Scene:
    """Anomalies are what is looked for here."""
    scene.check = lambda before, after, effects: None
    return scene


def newcomer_in(scene: Scene) -> Scene:
    """A third worker, which only prepares."""
    scene.script.prepares = False
    return watched(scene).comes(2)


@pytest.mark.parametrize(
    "message",
    [
        protocol.Exported("/nowhere"),
        protocol.Exported("", error="all is lost"),
        protocol.Done(1, 5, failure="all is lost"),
        protocol.Done(1, 100),
        protocol.Concluded({"accuracy": 1.0}, "/nowhere"),
        protocol.TaskDone(0, 1, [1.0]),
        protocol.KvSet(10**9, "/global/0", b"evil"),
        protocol.KvPart(10**9, "/global/all-2", 0, 2, b"evil"),
    ],
)
def test_one_that_prepares_neither_ends_a_training_nor_gives_a_result(
    message: protocol.FromWorker,
) -> None:
    scene = newcomer_in(Scene().train())
    scene.say(2, message)
    assert scene.phase is Phase.TRAINING
    assert len(scene.told("anomaly")) == 1


def test_a_member_does_not_give_a_result_that_nobody_asked_for() -> None:
    scene = watched(Scene().train())
    scene.say(1, protocol.Exported("/nowhere"))
    assert scene.phase is Phase.TRAINING and scene.told("anomaly")


def test_metrics_are_not_made_up_before_the_tasks_are_done() -> None:
    scene = Scene(PULLED)
    scene.script.deaf = True
    watched(scene).start()
    scene.say(0, protocol.Concluded({"accuracy": 1.0}, "/nowhere"))
    assert scene.phase is Phase.WORKING and scene.told("anomaly")
    assert not scene.state.progress.metrics


def test_sums_of_another_length_are_not_added_up() -> None:
    scene = Scene(PULLED)
    scene.script.deaf = True
    watched(scene).start()
    scene.say(0, protocol.TaskDone(0, 1, [1.0, 2.0]))
    done = scene.status.step
    scene.say(1, protocol.TaskDone(1, 1, [1.0]))
    assert scene.told("anomaly") and scene.phase is Phase.WORKING
    assert scene.status.step == done, "the task is not done"
    assert any("sums of a task" in text for text in scene.told("evict")), "and somebody else does it"


@pytest.mark.parametrize("worker_id", [-5, 10**12])
def test_a_worker_has_a_number_that_names_can_hold(worker_id: int) -> None:
    scene = Scene().train()
    hello = protocol.Hello(Seat("uid-x", worker_id, "host"))
    scene.give(inbox.Connected(hello, 99))
    assert "uid-x" not in scene.state.peers
    assert scene.state.keeping.next_id < 10


@pytest.mark.parametrize(
    "message",
    [
        protocol.Hello(Seat("uid", 1, "host"), generation=2**64 - 1),
        protocol.Hello(Seat("uid", 1, "host"), generation=2**63),
        protocol.Joined(2**60, 0),
        protocol.Out(1, -(2**60)),
        protocol.BadRecords("data", {2**60: ("bad", 1)}),
        protocol.Hello(Seat("uid", 1, "host"), protocol.Plan(2**62, (Seat("uid", 1, "host"),))),
    ],
)
def test_numbers_that_would_overflow_are_no_message(message: protocol.FromWorker) -> None:
    with pytest.raises(BadMessage, match="beyond every count"):
        codec.decode_from_worker(codec.encode(message))


def test_numbers_of_real_messages_pass() -> None:
    for message in (
        READY,
        protocol.Joined(10**9, 10**12, 10**15),
        protocol.BadRecords("data", {10**12: ("x", 0)}),
    ):
        assert codec.decode_from_worker(codec.encode(message)) == message


def test_nobody_asks_for_a_million_workers() -> None:
    scene = Scene().train()
    assert f"at most {MOST_WORKERS}" in refusal_to_scale(scene.state, 10**6)
    scene.give(inbox.Scale(10**6))
    assert scene.status.wanted == 2


# ------------------------------------------------------------------------------------- too much of everything

FLOODS = [
    lambda number: protocol.Note(protocol.NoteKind.WARNING, f"{number} " + "x" * 1000),
    lambda number: protocol.Note(protocol.NoteKind.WARNING, f"{number} " + "x" * 1000, once=True),
    lambda number: protocol.Evaluated(number, {"x" * 1000: 1.0}),
    lambda number: protocol.Checkpointed(number, "x" * 1000),
    lambda number: protocol.Exported("/nowhere"),
    lambda number: protocol.KvSet(10**9 + number, "/global/0", b"evil"),
]


def letters(scene: Scene) -> int:
    return sum(len(event.text()) for event in scene.events)


@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_of_reports_is_cut_off_and_told_of_and_others_are_heard_on(
    flood: Callable[[int], protocol.FromWorker],
) -> None:
    scene = watched(Scene().train())
    for number in range(20_000):
        scene.say(1, flood(number))
    assert letters(scene) < talk.MOST + 50_000
    assert len([text for text in scene.told("anomaly") if "more reports than anybody reads" in text]) == 1
    state = scene.state
    assert len(state.told_once) + len(state.progress.metrics) < 20_000
    scene.say(0, protocol.Note(protocol.NoteKind.WARNING, "from another worker"))
    assert "from another worker" in scene.told("warning")[-1]
    scene.wait(FLOOD_IS_FORGIVEN)
    scene.say(1, protocol.Note(protocol.NoteKind.WARNING, "quiet for a while"))
    assert "quiet for a while" in scene.told("warning")[-1]
    assert scene.phase is Phase.TRAINING


def test_who_connects_again_and_again_does_not_fill_the_history() -> None:
    scene = watched(Scene().train())
    hello = protocol.Hello(Seat("uid-x", 77, "h" * 500))
    for link in range(1000, 6000):
        scene.give(inbox.Connected(hello, link))
    assert letters(scene) < talk.MOST + 50_000


def test_a_ring_that_nobody_could_have_is_no_hello() -> None:
    scene = Scene().train()
    seats = tuple(Seat(f"made-up-{number}", number, "host") for number in range(MOST_WORKERS + 1))
    scene.give(inbox.Connected(protocol.Hello(Seat("uid-x", 77, "host"), protocol.Plan(9, seats)), 99))
    assert "uid-x" not in scene.state.peers and len(scene.state.ids) < 10
