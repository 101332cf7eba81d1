"""The worker's half of the protocol, one situation at a time. All of it is simulated time."""

from __future__ import annotations

from typing import TypeVar

import pytest

from edl_allreduce.core import protocol
from edl_allreduce.core.attendance import events, queries
from edl_allreduce.core.attendance.events import (
    Abort,
    Anomaly,
    CloseConnection,
    CloseStore,
    Connect,
    Instruction,
    OpenStore,
    Prepare,
    Send,
)
from edl_allreduce.core.attendance.machine import ABORT_AGAIN_SECONDS, RETRY_SECONDS, handle, validate
from edl_allreduce.core.attendance.state import Leave, MasterGone, Stage, State
from edl_allreduce.core.deadlines import Deadlines
from edl_allreduce.core.protocol import Plan, Seat

DEADLINES = Deadlines(10.0)
GRACE = 60.0
Kind = TypeVar("Kind", bound=Instruction)


def plan(generation: int, uids: str) -> Plan:
    return Plan(generation, tuple(Seat(uid, "abcdefgh".index(uid), "host") for uid in uids))


class Worker:
    """Worker a: its machine, its clock, and short ways to say what happens."""

    def __init__(self) -> None:
        self.now = 99.0
        self.step = 0
        self.state = State(Seat("a", 0, "host"), DEADLINES, GRACE)

    def tell(self, *happened: events.Event) -> list[Instruction]:
        """What the machine wants done about these events."""
        wanted: list[Instruction] = []
        for event in happened:
            self.state, instructions = handle(self.state, event, self.now)
            validate(self.state)
            wanted += instructions
        return wanted

    def hear(self, *messages: protocol.FromMaster) -> list[Instruction]:
        return self.tell(*(events.Heard(message) for message in messages))

    def wait(self, seconds: float) -> list[Instruction]:
        self.now += seconds
        return self.tell(events.Tick())

    def lose_the_connection(self) -> list[Instruction]:
        return self.tell(events.Closed(self.state.link, clean=False))

    def introduction(self) -> list[protocol.FromWorker]:
        return list(queries.introduction(self.state, self.step))

    def hello(self) -> protocol.Hello:
        return queries.hello(self.state, self.step)

    # ------------------------------------------------------------------------------- how far it is

    def connected(self) -> Worker:
        self.tell(events.Begun())
        self.hear(protocol.Welcome())
        self.now = 100.0
        return self

    def waiting(self) -> Worker:
        self.connected()
        self.tell(events.IsReady(protocol.Ready(fingerprint="data")))
        return self

    def planned(self, order: Plan, *, abort: bool = True) -> Worker:
        self.hear(protocol.NewPlan(order, abort, "it is time"))
        return self

    def entering(self) -> Worker:
        self.waiting().planned(plan(1, "ab"))
        self.tell(events.Entering(plan(1, "ab")))
        return self

    def training(self) -> Worker:
        self.entering()
        self.tell(events.HasJoined(1, 0))
        return self

    def done(self) -> Worker:
        self.training()
        self.step = 5
        self.tell(events.IsDone(5))
        return self


def said(instructions: list[Instruction]) -> list[protocol.FromWorker]:
    return [i.message for i in instructions if isinstance(i, Send)]


def of(kind: type[Kind], instructions: list[Instruction]) -> list[Kind]:
    return [i for i in instructions if isinstance(i, kind)]


# ------------------------------------------------------------------------------------ the usual course


def test_it_connects_says_that_it_is_ready_enters_joins_and_is_done():
    worker = Worker()
    assert worker.tell(events.Begun()) == [Connect(1)]
    ready = protocol.Ready(fingerprint="data")
    worker.hear(protocol.Welcome())
    assert said(worker.tell(events.IsReady(ready))) == [ready]
    worker.planned(plan(1, "ab"))
    entering = worker.tell(events.Entering(plan(1, "ab"), b"[0,0]"))
    assert entering == [
        OpenStore(plan(1, "ab")),
        Send(protocol.Entered(1)),
        Send(protocol.KvSet(1, queries.HERE, b"[0,0]")),
    ]
    assert said(worker.tell(events.HasJoined(1, 3, 24))) == [protocol.Joined(1, 3, 24)]
    done = events.IsDone(5, stopped=True, position=40, loss=0.5, failure="f", warning="w")
    assert said(worker.tell(done)) == [protocol.Done(1, 5, True, 40, 0.5, "f", "w")]
    assert queries.pending(worker.state, 1, worker.now) is None
    worker.hear(protocol.Export())
    assert queries.pending(worker.state, 1, worker.now) == protocol.Export()
    worker.tell(events.TookOrder())
    assert queries.pending(worker.state, 1, worker.now) is None
    worker.hear(protocol.Release())
    assert queries.pending(worker.state, 1, worker.now) == protocol.Release()


def test_the_next_ring_is_connected_while_this_one_trains_and_voted_for_when_it_is_at_hand():
    worker = Worker().training()
    following = plan(2, "abc")
    wanted = worker.hear(protocol.NewPlan(following, False, "worker 2 joins"))
    assert wanted == [OpenStore(following), Prepare(following)]
    assert queries.vote(worker.state, 1) == (False, False)
    worker.tell(events.Prepared(2))
    assert queries.vote(worker.state, 1) == (True, False)
    assert queries.upcoming(worker.state, 1) == following
    assert said(worker.tell(events.HasLeft(4))) == [protocol.Out(1, 4, "")], "told at every switch"
    assert queries.pending(worker.state, 1, worker.now) == protocol.NewPlan(
        following, False, "worker 2 joins"
    )


def test_a_worker_that_leaves_lets_those_decide_who_stay():
    worker = Worker().training()
    worker.planned(plan(2, "b"), abort=False)
    assert queries.vote(worker.state, 1) == (False, False)
    worker.planned(plan(3, "c"), abort=False)  # nobody of this ring stays
    assert queries.vote(worker.state, 1) == (True, False)


def test_the_boundary_is_some_steps_after_the_vote_unless_somebody_drains():
    assert queries.boundary(7, draining=False) == 7 + queries.LEAD_STEPS
    assert queries.boundary(7, draining=True) == 7


def test_a_doomed_ring_is_broken_at_once_and_again_until_the_worker_is_out():
    worker = Worker().training()
    wanted = worker.hear(protocol.NewPlan(plan(2, "a"), True, "worker 1 is gone"))
    assert wanted == [CloseStore(1), Abort(1)]
    assert worker.wait(ABORT_AGAIN_SECONDS / 2) == []
    assert queries.wakes_at(worker.state, worker.now) == pytest.approx(100 + ABORT_AGAIN_SECONDS)
    assert worker.wait(ABORT_AGAIN_SECONDS) == [Abort(1)]
    assert said(worker.tell(events.HasLeft(4, "connection reset"))) == [
        protocol.Out(1, 4, "connection reset")
    ]
    assert worker.wait(1) == []
    assert queries.wakes_at(worker.state, worker.now) is None


def test_a_connection_to_a_doomed_ring_is_broken_too_and_ends_when_the_helper_says_so():
    worker = Worker().training()
    worker.planned(plan(2, "abc"), abort=False)
    assert of(Abort, worker.hear(protocol.NewPlan(plan(3, "ab"), True, "worker 2 is gone"))) == [Abort(2)]
    worker.tell(events.HasLeft(4, "connection reset"))
    assert of(Abort, worker.wait(1)) == [Abort(2)], "the helper still connects"
    worker.tell(events.Prepared(2))
    assert worker.wait(1) == []


# ------------------------------------------------------------------------------------ promises of issue 14


def test_a_newcomer_that_is_told_to_abort_before_it_entered_answers():
    """It used to say nothing, and all workers stood still until it was given up."""
    worker = Worker().waiting().planned(plan(1, "ba"), abort=False)
    worker.hear(protocol.AbortRing(1, "worker 1 reports: connection reset"))
    assert queries.superseded(worker.state, 1, worker.now), "its wait for the others ends"
    declined = said(worker.tell(events.HasDeclined(plan(1, "ba"), 0)))
    assert declined == [protocol.Out(1, 0, "called off before it entered")]
    assert worker.hello().plan is None, "and it does not claim to be part of that ring"


def test_a_ring_that_was_called_off_before_it_is_entered_is_left_with_a_word():
    worker = Worker().waiting().planned(plan(1, "ab"))
    worker.hear(protocol.AbortRing(1, "a member left the ring"))
    assert said(worker.tell(events.Entering(plan(1, "ab")))) == []
    assert queries.doomed(worker.state, 1), "what the training thread is told"
    assert said(worker.tell(events.HasLeft(0, "a newer plan is on its way"))) == [
        protocol.Out(1, 0, "a newer plan is on its way")
    ]


def test_a_ring_that_breaks_while_there_is_no_connection_is_told_over_the_next_one():
    """`Out` used to be lost, and a healthy worker that holds the model was given up for it."""
    worker = Worker().training()
    assert of(Connect, worker.lose_the_connection()) == [Connect(2)]
    worker.step = 7
    worker.tell(events.HasLeft(7, "connection reset"))  # into a connection that never opened
    worker.lose_the_connection()
    worker.wait(RETRY_SECONDS)
    hello, ready = worker.introduction()
    assert hello == protocol.Hello(Seat("a", 0, "host"), step=7, has_state=True, generation=1)
    assert ready == protocol.Ready(step=7, has_state=True, fingerprint="data")


def test_a_drain_that_was_lost_with_the_connection_is_said_again():
    worker = Worker().waiting()
    worker.lose_the_connection()
    worker.tell(events.Drained())
    worker.lose_the_connection()
    worker.wait(RETRY_SECONDS)
    assert protocol.Draining() in worker.introduction()


def test_the_last_step_is_told_again_over_a_new_connection():
    worker = Worker().done()
    worker.lose_the_connection()
    hello = worker.hello()
    assert (hello.plan, hello.done, hello.joined, hello.step) == (plan(1, "ab"), True, True, 5)


def test_why_there_is_nothing_to_export_is_told_over_the_next_connection():
    worker = Worker().training()
    worker.lose_the_connection()
    worker.tell(events.IsDone(5, stopped=True, failure="the loss is not finite", warning="look"))
    hello, _ready, done = worker.introduction()
    assert done == protocol.Done(1, 5, True, 0, 0.0, "the loss is not finite", "look")
    assert isinstance(hello, protocol.Hello) and hello.joined and not hello.done, "nobody asks for a result"


def test_a_last_step_that_was_not_the_last_is_not_told_again():
    worker = Worker().done()
    worker.hear(protocol.NewPlan(plan(2, "ab"), True, "worker 2 was lost"))
    worker.tell(events.Entering(plan(2, "ab")))
    assert not any(isinstance(message, protocol.Done) for message in worker.introduction())


def test_a_worker_that_is_done_and_seated_anew_is_not_done_with_the_new_ring():
    worker = Worker().done().planned(plan(2, "a"))
    hello = worker.hello()
    assert (hello.plan, hello.done, hello.joined) == (plan(2, "a"), False, False)
    worker.tell(events.Entering(plan(2, "a")))
    hello = worker.hello()
    assert (hello.plan, hello.done, hello.joined) == (plan(2, "a"), False, False)


def test_the_result_is_told_again_and_not_written_twice():
    worker = Worker().done()
    worker.hear(protocol.Export())
    worker.tell(events.TookOrder())
    exported = protocol.Exported("/models/1")
    assert said(worker.tell(events.Said(exported))) == [exported]
    worker.lose_the_connection()
    assert exported in worker.introduction()
    assert worker.hear(protocol.Welcome(), protocol.Export()) == []
    assert queries.pending(worker.state, 1, worker.now) is None


def test_a_release_between_an_order_and_its_taking_is_nothing_odd():
    worker = Worker().done()
    worker.hear(protocol.Export(), protocol.Release())
    assert worker.tell(events.TookOrder()) == []
    assert queries.pending(worker.state, 1, worker.now) == protocol.Release()


def test_stop_stays_known_whatever_becomes_of_the_connection():
    worker = Worker().training()
    worker.hear(protocol.Stop("asked by the user"))
    worker.lose_the_connection()
    assert queries.vote(worker.state, 1) == (False, True)


REPORTS = [
    protocol.Checkpointed(10, "/checkpoints/10"),
    protocol.Evaluated(10, {"loss": 0.5}),
    protocol.Note(protocol.NoteKind.WARNING, "look"),
    protocol.BadRecords("training data", {3: ("is damaged", 0)}),
    protocol.Failed(False, "ValueError", "story"),
]


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: type(report).__name__)
def test_reports_wait_until_a_master_listens(report: protocol.FromWorker):
    worker = Worker().training()
    worker.lose_the_connection()
    assert worker.tell(events.Said(report)) == []
    worker.lose_the_connection()
    worker.wait(RETRY_SECONDS)
    assert said(worker.hear(protocol.Welcome())) == [report]
    assert said(worker.hear(protocol.Welcome())) == []
    assert said(worker.tell(events.Said(report))) == [report]


@pytest.mark.parametrize("report", [REPORTS[0], REPORTS[-1]], ids=lambda report: type(report).__name__)
def test_what_was_said_into_a_connection_that_was_dead_already_is_said_again(report: protocol.FromWorker):
    worker = Worker().training()
    assert said(worker.tell(events.Said(report))) == [report]  # nobody noticed yet
    worker.lose_the_connection()
    assert worker.introduction().count(report) == 1


def test_of_several_checkpoints_each_is_told_and_the_last_one_last():
    worker = Worker().training()
    worker.lose_the_connection()
    failed, written = protocol.Checkpointed(1, "/1", "disk full"), protocol.Checkpointed(2, "/2")
    worker.tell(events.Said(failed), events.Said(written))
    assert not any(isinstance(message, protocol.Checkpointed) for message in worker.introduction())
    assert said(worker.hear(protocol.Welcome())) == [failed, written]


# ------------------------------------------------------------------------- reconnects in every stage

STAGES = {
    "connected": Stage.PREPARING,
    "waiting": Stage.WAITING,
    "entering": Stage.ENTERING,
    "training": Stage.TRAINING,
    "done": Stage.DONE,
}


@pytest.mark.parametrize(("stage", "expected"), STAGES.items())
def test_a_connection_that_is_lost_and_comes_back_changes_no_stage(stage: str, expected: Stage):
    worker: Worker = getattr(Worker(), stage)()
    before = worker.state
    assert of(Connect, worker.lose_the_connection()) == [Connect(2)], "at once"
    hello = worker.hello()
    assert hello.joined == (expected in (Stage.TRAINING, Stage.DONE))
    assert hello.plan == before.plan
    worker.hear(protocol.Welcome())
    assert worker.state.stage is expected
    assert worker.state.lost_at is None and worker.state.linked


@pytest.mark.parametrize("stage", STAGES)
def test_the_end_of_an_older_connection_is_stale(stage: str):
    worker: Worker = getattr(Worker(), stage)()
    worker.lose_the_connection()
    worker.hear(protocol.Welcome())
    assert worker.tell(events.Closed(1, clean=False)) == []
    assert worker.state.linked


@pytest.mark.parametrize("stage", STAGES)
def test_without_a_master_it_tries_again_until_the_grace_period_is_over(stage: str):
    worker: Worker = getattr(Worker(), stage)()
    worker.lose_the_connection()
    attempts = 0
    while not worker.state.over:
        worker.lose_the_connection()
        wakes_at = queries.wakes_at(worker.state, worker.now)
        assert wakes_at is None or wakes_at > worker.now, "it does not turn in circles"
        attempts += len(of(Connect, worker.wait((wakes_at or worker.now) - worker.now)))
    assert worker.now == pytest.approx(100 + GRACE)
    assert attempts > 20
    assert queries.pending(worker.state, 1, worker.now) == MasterGone(GRACE)
    assert queries.vote(worker.state, 1)[0], "the ring ends at a boundary"
    assert worker.lose_the_connection() == []
    assert worker.wait(100) == []


def test_a_master_that_welcomes_and_hangs_up_at_once_is_not_called_without_a_pause():
    worker = Worker().connected()
    attempts = 0
    for _ in range(100):
        if worker.state.retry_at is None:
            worker.hear(protocol.Welcome())
            attempts += len(of(Connect, worker.lose_the_connection()))
        attempts += len(of(Connect, worker.wait(RETRY_SECONDS / 10)))
    assert 5 <= attempts <= 12


def test_an_attempt_that_hangs_does_not_prolong_the_grace_period():
    worker = Worker().training()
    worker.lose_the_connection()
    assert of(CloseConnection, worker.wait(GRACE)) == [CloseConnection()]
    assert queries.next_task(worker.state) == MasterGone(GRACE)


def test_a_master_that_comes_back_begins_a_new_grace_period():
    worker = Worker().training()
    worker.lose_the_connection()
    worker.lose_the_connection()
    worker.wait(GRACE - 1)
    worker.hear(protocol.Welcome())
    worker.lose_the_connection()
    worker.wait(GRACE - 1)
    assert not worker.state.over and not queries.vote(worker.state, 1)[0]
    assert worker.state.stage is Stage.TRAINING


def test_a_master_that_refuses_this_worker_ends_it_and_breaks_its_ring():
    worker = Worker().training()
    assert Abort(1) in worker.tell(events.Refused("wrong token"))
    assert queries.pending(worker.state, 1, worker.now) == protocol.Evicted("wrong token")
    assert worker.lose_the_connection() == []


# ---------------------------------------------------------------------------------------------- drains


def test_a_drain_in_a_ring_waits_for_the_plan_without_this_worker():
    worker = Worker().training()
    assert said(worker.tell(events.Drained(), events.Drained())) == [protocol.Draining()], "once"
    assert queries.pending(worker.state, 1, worker.now) is None
    worker.planned(plan(2, "b"), abort=False)
    assert queries.pending(worker.state, 1, worker.now) == Leave()


def test_a_drain_before_the_first_ring_leaves_at_once_unless_it_is_seated():
    worker = Worker().waiting()
    worker.tell(events.Drained())
    assert queries.pending(worker.state, 0, worker.now) == Leave()
    worker.planned(plan(1, "ab"))
    assert queries.pending(worker.state, 0, worker.now) == worker.state.newest


def test_a_draining_worker_without_a_master_is_deserted_after_the_time_of_silence():
    worker = Worker().training()
    worker.tell(events.Drained(), events.HasLeft(3))
    worker.lose_the_connection()
    worker.lose_the_connection()
    assert not queries.deserted(worker.state, worker.now)
    assert queries.pending(worker.state, 1, worker.now) is None
    worker.wait(DEADLINES.silent)
    assert queries.deserted(worker.state, worker.now)
    assert queries.pending(worker.state, 1, worker.now) == MasterGone(DEADLINES.silent)


def test_a_draining_newcomer_without_a_master_does_not_wait_for_the_others_any_longer():
    worker = Worker().waiting().planned(plan(1, "ab"), abort=False)
    worker.tell(events.Drained())
    worker.lose_the_connection()
    assert not queries.superseded(worker.state, 1, worker.now)
    worker.wait(DEADLINES.silent)
    assert queries.superseded(worker.state, 1, worker.now)
    assert worker.tell(events.HasDeclined(plan(1, "ab"), 0)) != []
    assert queries.pending(worker.state, 1, worker.now) == MasterGone(DEADLINES.silent)


def test_the_machine_wants_to_hear_the_time_when_a_draining_worker_becomes_deserted():
    worker = Worker().training()
    worker.tell(events.Drained())
    worker.lose_the_connection()
    assert queries.wakes_at(worker.state, worker.now) == worker.now + DEADLINES.silent


# ------------------------------------------------------------------------------------------- hanging up


def test_hanging_up_says_what_is_still_to_be_said():
    worker = Worker().waiting()
    worker.lose_the_connection()
    worker.lose_the_connection()  # now it waits before it tries again
    failed = protocol.Failed(False, "ValueError", "story")
    worker.tell(events.Said(failed))
    assert worker.tell(events.HangUp()) == [Connect(3), Send(failed), CloseConnection()]
    assert worker.tell(events.HangUp()) == []
    worker.lose_the_connection()
    assert worker.state.over


def test_a_signal_may_be_faster_than_the_beginning():
    worker = Worker()
    worker.tell(events.Drained())
    assert worker.tell(events.HangUp()) == [Connect(1), CloseConnection()]
    assert protocol.Draining() in worker.introduction()
    assert worker.tell(events.Begun()) == []


def test_who_leaves_knows_whether_the_master_was_there_to_hear_it():
    unheard = Worker()
    unheard.tell(events.Drained())
    unheard.tell(events.HangUp())
    unheard.lose_the_connection()
    assert unheard.state.over and not unheard.state.parted
    heard = Worker().waiting()
    heard.tell(events.Drained())
    heard.tell(events.HangUp())
    heard.tell(events.Closed(heard.state.link, clean=True))
    assert heard.state.over and heard.state.parted


def test_a_master_that_dies_while_a_worker_hangs_up_may_not_have_heard_it():
    worker = Worker().waiting()
    worker.tell(events.Drained())
    worker.tell(events.HangUp())
    worker.lose_the_connection()
    assert worker.state.over and not worker.state.parted


def test_after_its_release_the_end_of_the_connection_is_the_end():
    worker = Worker().done()
    worker.hear(protocol.Release())
    assert worker.lose_the_connection() == []
    assert worker.state.over


# ------------------------------------------------------------------------------------- stale, and impossible


def test_what_is_stale_by_its_number_is_silent():
    worker = Worker().training().planned(plan(5, "ab"))
    assert worker.hear(protocol.NewPlan(plan(4, "a"), True, "late")) == []
    assert worker.hear(protocol.NewPlan(plan(5, "ab"), True, "twice")) == []
    worker.tell(events.HasLeft(3, "connection reset"))
    assert of(Anomaly, worker.hear(protocol.AbortRing(1, "late"))) == []
    assert worker.hear(protocol.KvEntry(1, queries.HERE, b"late")) == []
    assert queries.company(worker.state, 5) is None


def test_newcomers_hear_of_the_place_of_their_ring_and_of_no_other():
    worker = Worker().waiting().planned(plan(5, "ba"), abort=False)
    worker.hear(protocol.KvEntry(4, queries.NEXT, b"old"))
    assert queries.place(worker.state, 5) is None
    worker.hear(protocol.KvEntry(5, queries.NEXT, b"next"))
    assert (queries.place(worker.state, 5), queries.company(worker.state, 5)) == (b"next", None)
    worker.hear(protocol.KvEntry(5, queries.HERE, b"here"))
    assert queries.company(worker.state, 5) == b"here"


IMPOSSIBLE: list[tuple[str, events.Event, str]] = [
    (
        "waiting",
        events.Heard(protocol.AbortRing(9, "x")),
        "told to break the ring of generation 9, of which it never heard",
    ),
    ("training", events.Heard(protocol.Export()), "told to write the result while it is training"),
    ("training", events.Heard(protocol.DoTask(1, 1, 0, 1, 1)), "given a task while it trains"),
    ("waiting", events.IsReady(protocol.Ready()), "says that it is ready while it is waiting"),
    ("training", events.Entering(plan(2, "ab")), "enters generation 2 while it is training"),
    ("waiting", events.HasJoined(1, 0), "joined generation 1 while it is waiting"),
    ("waiting", events.HasLeft(0), "left a ring while it is waiting"),
    ("training", events.HasDeclined(plan(1, "ab"), 0), "declined generation 1 while it is training"),
    ("entering", events.IsDone(0), "finished while it is entering"),
    ("training", events.TookOrder(), "took an order that was not given"),
    ("waiting", events.TookTask(), "took a task that was not given"),
    ("training", events.Prepared(7), "connected to generation 7, to which it was not told to"),
    ("connected", events.Begun(), "began twice"),
]


@pytest.mark.parametrize(("stage", "event", "text"), IMPOSSIBLE, ids=[text for *_, text in IMPOSSIBLE])
def test_what_cannot_happen_is_told_and_changes_nothing(stage: str, event: events.Event, text: str):
    worker: Worker = getattr(Worker(), stage)()
    before = worker.state
    assert worker.tell(event) == [Anomaly(text)]
    assert worker.state == before


def test_a_worker_that_comes_back_says_which_tasks_it_has():
    worker = Worker().waiting()
    first, second = protocol.DoTask(3, 1, 0, 5, 7), protocol.DoTask(4, 2, 5, 10, 7)
    worker.hear(first)
    assert worker.hello().tasks == ((3, 1),)
    worker.tell(events.TookTask())
    assert worker.hello().tasks == ((3, 1),), "it works on it"
    worker.hear(second)
    worker.lose_the_connection()
    worker.tell(events.Said(protocol.TaskDone(3, 1, [])))
    assert set(worker.hello().tasks) == {(3, 1), (4, 2)}, "a result that waits for a master is not lost"
    worker.hear(protocol.Welcome())
    assert worker.hello().tasks == ((4, 2),)


def test_pulled_work_comes_in_the_order_in_which_it_was_given():
    worker = Worker().waiting()
    task = protocol.DoTask(1, 1, 0, 10, 5)
    worker.hear(task)
    worker.tell(events.Drained())
    worker.hear(protocol.Release())
    for expected in (task, Leave(), protocol.Release()):
        assert queries.next_task(worker.state) == expected
        worker.tell(events.TookTask())
    assert queries.next_task(worker.state) is None
