"""The shell around the machine, with scripted masters: threads, orders that wait, rings that are broken."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import pytest

from edl_allreduce.core import protocol
from edl_allreduce.core.attendance.state import Leave, MasterGone
from edl_allreduce.core.deadlines import Deadlines
from edl_allreduce.core.protocol import Plan, Seat
from edl_allreduce.errors import DataError, JobFailed, MasterUnreachable
from edl_allreduce.worker.attendant import Attendant
from edl_allreduce.worker.lone import LoneMaster

SEATS = tuple(Seat(f"worker-{number}", number, "127.0.0.1") for number in range(3))
FIRST = Plan(1, SEATS[:2])


class Scripted:
    """A master whose every connection the test holds in its hands."""

    def __init__(self) -> None:
        self.heard: SimpleQueue[protocol.FromWorker] = SimpleQueue()
        self.streams: SimpleQueue[ScriptedStream] = SimpleQueue()

    def dial(self, hello: protocol.Hello) -> ScriptedStream:
        stream = ScriptedStream(self)
        stream.send(hello)
        self.streams.put(stream)
        return stream

    def hears(self, kind: type[protocol.FromWorker]) -> protocol.FromWorker:
        """Wait for the next message of this kind."""
        while not isinstance(message := self.heard.get(timeout=30), kind):
            pass
        return message


class ScriptedStream:
    def __init__(self, master: Scripted) -> None:
        self.clean = True
        self._master = master
        self._words: SimpleQueue[protocol.FromMaster | Exception | None] = SimpleQueue()

    def send(self, message: protocol.FromWorker) -> None:
        self._master.heard.put(message)

    def close(self) -> None:
        self._words.put(None)

    def say(self, *messages: protocol.FromMaster | Exception | None) -> None:
        for message in messages:
            self._words.put(message)

    def __iter__(self) -> Iterator[protocol.FromMaster]:
        while (message := self._words.get()) is not None:
            if isinstance(message, Exception):
                raise message
            yield message


class Recorded:
    """A ring whose helper threads do nothing but tell."""

    generation = 0

    def __init__(self) -> None:
        self.aborted: SimpleQueue[int] = SimpleQueue()
        self.prepared: SimpleQueue[tuple[Plan, Callable[[], None]]] = SimpleQueue()

    def prepare(self, plan: Plan, uid: str, then: Callable[[], None]) -> None:
        self.prepared.put((plan, then))

    def abort(self, generation: int) -> None:
        self.aborted.put(generation)


@pytest.fixture
def master() -> Scripted:
    return Scripted()


def attendant(master: Scripted, *, grace: float = 600.0, detection: float = 10.0) -> Attendant:
    control = Attendant(
        master.dial, SEATS[0], deadlines=Deadlines(detection), master_grace=grace, end=lambda code: None
    )
    control.start()
    return control


def eventually(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline, "it does not come about"
        time.sleep(0.001)


def training(control: Attendant, master: Scripted) -> tuple[ScriptedStream, Recorded]:
    """Worker 0 is in the first ring."""
    stream, ring = master.streams.get(timeout=30), Recorded()
    stream.say(protocol.Welcome(), protocol.NewPlan(FIRST, True, "2 workers are ready"))
    control.watch(ring)
    control.ready(protocol.Ready())
    assert control.next_order(0) == protocol.NewPlan(FIRST, True, "2 workers are ready")
    assert control.entering(FIRST, (0, 0))
    control.joined(1, 0, 0)
    assert master.hears(protocol.Joined) == protocol.Joined(1, 0, 0)
    return stream, ring


def test_orders_come_and_reports_go(master: Scripted):
    control = attendant(master)
    stream, _ = training(control, master)
    assert control.vote(1) == (False, False)
    stream.say(protocol.Stop("enough"))
    eventually(lambda: control.vote(1) == (False, True))
    control.progress.position, control.progress.loss = 8, 0.25
    control.done(1, stopped=True, failure="", warning="")
    assert master.hears(protocol.Done) == protocol.Done(1, 1, True, 8, 0.25)
    stream.say(protocol.Export())
    assert control.next_order(1) == protocol.Export()
    control.send(protocol.Exported("/models"))
    stream.say(protocol.Release())
    assert control.next_order(1) == protocol.Release()
    control.close()
    control.wait_closed(30)


def test_a_doomed_ring_is_aborted_by_the_thread_that_hears_of_it_until_it_is_left(master: Scripted):
    control = attendant(master)
    stream, ring = training(control, master)
    stream.say(protocol.NewPlan(Plan(2, SEATS[:1]), True, "worker 1 is gone"))
    assert [ring.aborted.get(timeout=30) for _ in range(3)] == [1, 1, 1]
    assert control.doomed(1) and not control.doomed(2)
    control.left(3, "connection reset")
    assert master.hears(protocol.Out) == protocol.Out(1, 3, "connection reset")
    order = control.next_order(1)
    assert isinstance(order, protocol.NewPlan) and order.plan.generation == 2


def test_the_next_ring_is_prepared_by_a_helper_and_then_voted_for(master: Scripted):
    control = attendant(master)
    stream, ring = training(control, master)
    following = Plan(2, SEATS)
    stream.say(protocol.NewPlan(following, False, "worker 2 joins"))
    plan, at_hand = ring.prepared.get(timeout=30)
    assert plan == following and control.vote(1) == (False, False)
    threading.Thread(target=at_hand).start()
    eventually(lambda: control.vote(1) == (True, False))
    assert control.upcoming(1) == following


def test_a_ring_that_is_called_off_is_not_entered(master: Scripted):
    control = attendant(master)
    stream = master.streams.get(timeout=30)
    control.ready(protocol.Ready())
    stream.say(protocol.Welcome(), protocol.NewPlan(FIRST, True, "…"), protocol.AbortRing(1, "called off"))
    control.next_order(0)
    eventually(lambda: control.doomed(1))
    assert not control.entering(FIRST, None)
    control.left(0, "a newer plan is on its way")
    assert master.hears(protocol.Out) == protocol.Out(1, 0, "a newer plan is on its way")


def test_a_newcomer_waits_for_those_who_hold_the_model(master: Scripted):
    control = attendant(master)
    stream = master.streams.get(timeout=30)
    control.ready(protocol.Ready())
    gentle = protocol.NewPlan(Plan(4, SEATS), False, "worker 0 joins")
    stream.say(protocol.Welcome(), gentle)
    assert control.next_order(0) == gentle
    threading.Timer(0.01, stream.say, [protocol.KvEntry(4, "/next", b"[7,56]")]).start()
    assert control.wait_for_place(4) == (7, 56)
    threading.Timer(0.01, stream.say, [protocol.KvEntry(4, "/here", b"[7,56]")]).start()
    assert control.wait_for_company(4)


def test_nobody_waits_for_a_ring_that_is_called_off(master: Scripted):
    control = attendant(master)
    stream = master.streams.get(timeout=30)
    control.ready(protocol.Ready())
    stream.say(protocol.Welcome(), protocol.NewPlan(Plan(4, SEATS), False, "worker 0 joins"))
    control.next_order(0)
    threading.Timer(0.01, stream.say, [protocol.AbortRing(4, "called off")]).start()
    assert control.wait_for_place(4) is None
    assert not control.wait_for_company(4)


def test_a_connection_that_ends_is_opened_again_with_all_that_matters(master: Scripted):
    control = attendant(master)
    stream, _ = training(control, master)
    control.progress.step = 9
    stream.say(None)
    hello = master.hears(protocol.Hello)
    assert isinstance(hello, protocol.Hello)
    assert (hello.plan, hello.joined, hello.step, hello.has_state) == (FIRST, True, 9, True)
    master.hears(protocol.Ready)
    master.streams.get(timeout=30).say(protocol.Welcome())
    control.send(protocol.Note(protocol.NoteKind.NOTICE, "heard again"))
    assert master.hears(protocol.Note) == protocol.Note(protocol.NoteKind.NOTICE, "heard again")


def test_no_master_for_the_grace_period_ends_the_ring_at_a_boundary(master: Scripted):
    control = attendant(master, grace=0.05)
    stream, _ = training(control, master)
    stream.say(None)
    eventually(lambda: control.vote(1) == (True, False))
    control.switching(3)
    assert control.next_order(1) == MasterGone(0.05)
    control.wait_closed(30)


def test_a_master_that_refuses_ends_the_worker(master: Scripted):
    control = attendant(master)
    master.streams.get(timeout=30).say(MasterUnreachable("wrong token"))
    assert control.next_order(0) == protocol.Evicted("wrong token")


def test_a_drain_is_told_before_the_worker_can_end(master: Scripted):
    control = attendant(master)
    master.streams.get(timeout=30).say(protocol.Welcome())
    control.drain()
    control.close()
    assert control.wait_closed(30)
    assert master.hears(protocol.Draining) == protocol.Draining()


def test_a_drain_that_no_master_answers_is_known_to_be_unheard(master: Scripted):
    control = attendant(master)
    control.drain()
    control.close()
    assert not control.wait_closed(30)


def test_a_drain_over_a_connection_that_breaks_is_not_taken_for_heard(master: Scripted):
    control = attendant(master)
    stream = master.streams.get(timeout=30)
    stream.clean = False
    stream.say(protocol.Welcome())
    control.drain()
    control.close()
    assert not control.wait_closed(30)
    assert master.hears(protocol.Draining) == protocol.Draining()


def test_tasks_are_pulled_one_after_the_other(master: Scripted):
    control = attendant(master)
    stream = master.streams.get(timeout=30)
    task = protocol.DoTask(1, 1, 0, 8, 5)
    stream.say(protocol.Welcome(), task)
    assert control.next_task() == task
    control.drain()
    assert control.next_task() == Leave()


def test_what_cannot_happen_is_told_to_the_master(master: Scripted):
    control = attendant(master)
    master.streams.get(timeout=30).say(protocol.Welcome(), protocol.AbortRing(7, "never planned"))
    note = master.hears(protocol.Note)
    assert isinstance(note, protocol.Note) and note.kind == protocol.NoteKind.WARNING
    assert "generation 7" in note.text
    control.close()


def test_heartbeats_tell_what_the_training_thread_does(master: Scripted):
    control = attendant(master, detection=0.05)
    control.progress.step = 4
    while True:
        pulse = master.hears(protocol.Pulse)
        assert isinstance(pulse, protocol.Pulse)
        if pulse.step == 4:
            break
    control.close()


# --------------------------------------------------------------------------------------- no other master


def alone(bad_allowed: int = 0, rank: int = 0) -> tuple[LoneMaster, Attendant]:
    lone = LoneMaster(Plan(1, SEATS[:2]), rank, bad_allowed)
    control = lone.attendant()
    control.ready(protocol.Ready())
    order = control.next_order(0)
    assert isinstance(order, protocol.NewPlan) and order.abort
    assert control.entering(order.plan, None)
    control.joined(1, 0, 0)
    return lone, control


def test_a_lone_master_gives_one_plan_then_wants_the_result_then_releases(capsys: pytest.CaptureFixture[str]):
    lone, control = alone()
    control.done(5, stopped=False, failure="", warning="")
    assert control.next_order(1) == protocol.Export()
    control.send(protocol.Exported("/models"))
    assert control.next_order(1) == protocol.Release()
    assert lone.verdict(5) == 0
    assert capsys.readouterr().out == "Succeeded: 5 steps\nThe trained model is in /models\n"


def test_other_ranks_are_released_without_a_result():
    _, control = alone(rank=1)
    control.done(5, stopped=False, failure="", warning="")
    assert control.next_order(1) == protocol.Release()


def test_stopping_a_lone_job_stops_it_at_the_next_boundary():
    lone, control = alone()
    lone.stop()
    eventually(lambda: control.vote(1) == (False, True))
    assert not control.draining


def test_a_lone_ring_that_breaks_ends_the_job():
    lone, control = alone()
    control.left(3, "connection reset")
    assert control.next_order(1) == protocol.Release()
    with pytest.raises(JobFailed, match=r"the ring broke after 3 steps \(connection reset\)"):
        lone.check()


def test_too_many_bad_records_end_a_lone_job():
    lone, control = alone(bad_allowed=1)
    control.send(protocol.BadRecords("training data", {1: ("bad", 0), 2: ("bad", 0)}))
    eventually(lambda: control.vote(1) == (False, True))
    control.done(1, stopped=True, failure="", warning="")
    assert control.next_order(1) == protocol.Release()
    with pytest.raises(DataError):
        lone.verdict(1)


def test_a_failure_of_the_training_leaves_no_result():
    lone, control = alone()
    control.done(3, stopped=True, failure="the loss is not finite", warning="")
    assert control.next_order(1) == protocol.Release()
    with pytest.raises(JobFailed, match="the loss is not finite"):
        lone.verdict(3)
