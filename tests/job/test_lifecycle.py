"""Every line of the table of phases happens, and nothing that is not in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest

from edl_allreduce.core import events, protocol
from edl_allreduce.core.causes import Cause
from edl_allreduce.core.job import inbox, machine
from edl_allreduce.core.job.lifecycle import FINAL, MOVES, Phase, allowed
from edl_allreduce.core.job.state import begin
from edl_allreduce.core.job.turn import Turn
from edl_allreduce.core.protocol import NoteKind
from edl_allreduce.testing.scene import OPTIONS, Scene

PULLED = replace(OPTIONS, task_records=50)
RECOVERING = replace(OPTIONS, recover_until=1020.0)


def starting() -> Scene:
    scene = Scene()
    scene.script.prepares = False
    return scene.start()


def training() -> Scene:
    return Scene().train()


def waiting() -> Scene:
    """One of two is left, and two are needed."""
    scene = Scene(replace(OPTIONS, min_workers=2)).train()
    scene.script.prepares = False
    return scene.crash(1, Cause.DISRUPTED)


def working() -> Scene:
    scene = Scene(PULLED)
    scene.script.deaf = True
    return scene.start()


def finishing() -> Scene:
    """The last step is done, and whoever is to write the result hears nothing."""
    scene = training()
    for actor in scene.actors.values():
        actor.script.deaf = True
    for number in (0, 1):
        scene.say(number, protocol.Done(scene.status.generation, 100))
    return scene


def adopted(*, done: bool) -> Scene:
    """A master that was restarted hears the ring of the one before it."""
    scene = Scene(RECOVERING)
    seats = tuple(protocol.Seat(f"uid-{i}", i, "host") for i in range(2))
    plan = protocol.Plan(7, seats)
    scene.give(inbox.Adopt((0, 1), (0, 1), 2, 2))
    for i in range(2):
        scene.script.prepares = False
        scene.comes(i)
        actor = scene.actors[i]
        actor.plan, actor.generation, actor.joined, actor.done, actor.has_state = plan, 7, True, done, True
        actor.step, actor.ready = 50, True
        scene.connect(i)
    return scene


def the_last_holder_returns() -> Scene:
    """It trained the last step while it was cut off, and all others died meanwhile."""
    scene = Scene(replace(OPTIONS, num_workers=3, min_workers=3)).train()
    scene.script.prepares = False
    scene.cut(0)
    scene.actors[0].done = True
    scene.crash(1, Cause.DISRUPTED).crash(2, Cause.DISRUPTED)
    assert scene.phase is Phase.WAITING
    return scene.connect(0)


def fail(scene: Scene) -> Scene:
    return scene.say(0, protocol.BadRecords("training data", {1: ("torn", 0)}))


def kill(scene: Scene) -> Scene:
    return scene.give(inbox.KillAll())


def stop(scene: Scene) -> Scene:
    return scene.give(inbox.Stop("asked"))


def stopped_and_written() -> Scene:
    return stop(training())


def written_for_the_last_master() -> Scene:
    scene = Scene(RECOVERING).give(inbox.Adopt((0,), (0,), 1, 1))
    scene.script.prepares = False
    return scene.comes(0).say(0, protocol.Exported("model.keras"))


HAPPENS: dict[tuple[Phase, Phase], list[Callable[[], Scene]]] = {
    (Phase.STARTING, Phase.TRAINING): [training, lambda: adopted(done=False)],
    (Phase.STARTING, Phase.WORKING): [working],
    (Phase.STARTING, Phase.FINISHING): [lambda: adopted(done=True)],
    (Phase.STARTING, Phase.SUCCEEDED): [written_for_the_last_master],
    (Phase.STARTING, Phase.STOPPED): [lambda: stop(starting()), lambda: kill(starting())],
    (Phase.STARTING, Phase.FAILED): [lambda: fail(starting())],
    (Phase.TRAINING, Phase.WAITING): [waiting],
    (Phase.TRAINING, Phase.FINISHING): [finishing],
    (Phase.TRAINING, Phase.STOPPED): [lambda: kill(training())],
    (Phase.TRAINING, Phase.FAILED): [lambda: fail(training())],
    (Phase.WAITING, Phase.TRAINING): [lambda: waiting().prepare(2)],
    (Phase.WAITING, Phase.FINISHING): [the_last_holder_returns],
    (Phase.WAITING, Phase.STOPPED): [lambda: kill(waiting())],
    (Phase.WAITING, Phase.FAILED): [lambda: fail(waiting())],
    (Phase.WORKING, Phase.SUCCEEDED): [lambda: Scene(PULLED).start()],
    (Phase.WORKING, Phase.STOPPED): [lambda: stop(working()), lambda: kill(working())],
    (Phase.WORKING, Phase.FAILED): [lambda: fail(working())],
    (Phase.FINISHING, Phase.SUCCEEDED): [lambda: finishing().say(0, protocol.Exported("model.keras"))],
    (Phase.FINISHING, Phase.STOPPED): [lambda: kill(finishing()), stopped_and_written],
    (Phase.FINISHING, Phase.FAILED): [lambda: finishing().say(0, protocol.Exported("", "disk full"))],
}


class Seen:
    """Records every move of every turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.moves: set[tuple[Phase, Phase]] = set()
        original = Turn.move

        def move(turn: Turn, phase: Phase) -> bool:
            before = turn.state.phase
            moved = original(turn, phase)
            if moved and before is not phase:
                self.moves.add((before, phase))
            return moved

        monkeypatch.setattr(Turn, "move", move)


@pytest.mark.parametrize("line", MOVES, ids=lambda line: f"{line[0].value}-{line[1].value}")
def test_every_line_of_the_table_happens(line, monkeypatch):
    seen = Seen(monkeypatch)
    for scenario in HAPPENS[line]:
        seen.moves.clear()
        scenario()
        assert line in seen.moves
    assert HAPPENS[line], "a line that cannot happen does not belong into the table"


def test_final_phases_are_left_by_nothing():
    for before, after in product(Phase, Phase):
        assert not (allowed(before, after) and before in FINAL)
    assert {before for before, _ in MOVES} == set(Phase) - FINAL


@pytest.mark.parametrize("phase", sorted(FINAL))
def test_what_is_over_stays_as_it_is_whatever_comes(phase):
    scene = training()
    ends = {
        Phase.SUCCEEDED: lambda: [scene.wait(2000)],
        Phase.STOPPED: lambda: [kill(scene)],
        Phase.FAILED: lambda: [fail(scene)],
    }
    scene.steps = 200
    ends[phase]()
    assert scene.phase is phase and scene.over
    reason = scene.state.reason
    later = (inbox.Stop("again"), inbox.KillAll(), inbox.Scale(5), inbox.Tick(), inbox.LogRead(0, "late"))
    scene.give(*later, inbox.Ended(9, Cause.CRASHED, "late"), inbox.Note(NoteKind.POD, "still there"))
    assert (scene.phase, scene.state.reason) == (phase, reason)
    assert len(scene.told("end")) == 1 and scene.told("pod") == ["still there"]


def test_a_move_that_the_table_does_not_know_is_told_and_not_made():
    turn = Turn(training().state, 2000.0)
    turn.end(Phase.SUCCEEDED, "nobody knows why")
    assert turn.state.phase is Phase.TRAINING
    (told,) = turn.effects
    assert isinstance(told, inbox.Tell)
    assert told.event.text().startswith("the job cannot go from Training to Succeeded")


@pytest.mark.parametrize("message", [protocol.TaskDone(0, 1, []), protocol.Concluded({}, "")])
def test_a_message_of_the_other_kind_of_work_is_an_anomaly(message):
    scene = training()
    scene.check = lambda before, after, effects: None
    scene.say(1, message)
    (told,) = [event for event in scene.events if isinstance(event, events.Anomaly)]
    assert told.worker_id == 1 and type(message).__name__ in told.text()


def test_states_are_values():
    """Whoever holds the state from before an event still has it."""
    before = begin(OPTIONS, 0.0)
    copy = begin(OPTIONS, 0.0)
    after, _ = machine.handle(before, inbox.Tick(), 0.0)
    machine.handle(after, inbox.Ended(0, Cause.CRASHED, "exited with 1"), 1.0)
    assert before == copy and after.slots.keys() == {0, 1}
