"""The shell around the machine: streams, cluster, mailbox and clock, in simulated time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest

from edl_allreduce.cluster.base import Found
from edl_allreduce.core import protocol
from edl_allreduce.core.causes import Cause
from edl_allreduce.core.health import Activity
from edl_allreduce.core.job import inbox, machine
from edl_allreduce.core.job.lifecycle import Phase
from edl_allreduce.core.parts import MOST_KEYS
from edl_allreduce.core.protocol import NoteKind, Seat
from edl_allreduce.core.rendezvous import LONGEST_VALUE
from edl_allreduce.core.status import EventRecord
from edl_allreduce.errors import UsageError
from edl_allreduce.master.shell import JobShell
from edl_allreduce.testing.clock import FakeClock
from edl_allreduce.testing.cluster import FakeCluster
from edl_allreduce.testing.scene import OPTIONS, READY


class Lab:
    """A shell with a cluster and a clock that a test moves."""

    def __init__(self) -> None:
        self.clock, self.cluster = FakeClock(), FakeCluster()
        self.events: list[EventRecord] = []
        self.shell = JobShell(OPTIONS, self.cluster, self.events.append, clock=self.clock)
        self.running = asyncio.create_task(self.shell.run())

    def stream(self, worker_id: int, **hello: object) -> Stream:
        return Stream(self.shell, worker_id, **hello)

    def told(self, kind: str) -> list[str]:
        return [event.text for event in self.events if event.kind == kind]


class Stream:
    """One worker's connection."""

    def __init__(self, shell: JobShell, worker_id: int, **hello: object) -> None:
        self.said: asyncio.Queue[protocol.FromWorker | None] = asyncio.Queue()
        self.heard: list[protocol.FromMaster] = []
        self.ended = False
        self.uid = f"uid-{worker_id}"
        seat = Seat(self.uid, worker_id, "host")
        self.said.put_nowait(replace(protocol.Hello(seat, version="test"), **hello))
        self.task = asyncio.create_task(self._attend(shell))

    async def _attend(self, shell: JobShell) -> None:
        async def requests() -> AsyncIterator[protocol.FromWorker]:
            while (message := await self.said.get()) is not None:
                yield message

        async for message in shell.attend(requests(), "test"):
            self.heard.append(message)
            if isinstance(message, protocol.NewPlan) and message.plan.rank_of(self.uid) is not None:
                generation = message.plan.generation
                self.say(protocol.Entered(generation), protocol.Joined(generation, 0))
        self.ended = True

    def say(self, *messages: protocol.FromWorker | None) -> None:
        for message in messages:
            self.said.put_nowait(message)


def play(scenario: Callable[[Lab], Awaitable[None]]) -> Lab:
    async def run() -> Lab:
        lab = Lab()
        try:
            await lab.clock.settle()
            await scenario(lab)
        finally:
            lab.running.cancel()
            await asyncio.gather(lab.running, return_exceptions=True)
        return lab

    return asyncio.run(run())


async def two_that_train(lab: Lab) -> list[Stream]:
    streams = [lab.stream(number) for number in (0, 1)]
    for stream in streams:
        stream.say(READY)
    await lab.clock.advance(1.0)
    assert all(worker.rank >= 0 for worker in lab.shell.status().workers)
    return streams


def test_what_the_machine_wants_is_done():
    async def scenario(lab: Lab) -> None:
        assert lab.cluster.launched == [0, 1]
        streams = await two_that_train(lab)
        assert lab.shell.status().phase == "Training"
        assert [worker.pid for worker in lab.shell.status().workers] == [10_000, 10_001]
        lab.shell.kill_all()
        await lab.clock.settle()
        assert sorted(lab.cluster.killed) == [0, 1]
        assert all(isinstance(stream.heard[-1], protocol.Release) for stream in streams)
        for stream in streams:
            stream.say(None)
        await lab.clock.settle()
        assert (await lab.running).phase is Phase.STOPPED and lab.cluster.closed

    play(scenario)


ALL = "/global/all-2"


def entries(stream: Stream) -> list[tuple[str, bytes]]:
    return [(m.key, m.value) for m in stream.heard if isinstance(m, protocol.KvEntry)]


def test_keys_of_a_rendezvous_go_to_its_members_and_parts_as_a_whole():
    async def scenario(lab: Lab) -> None:
        first, second = await two_that_train(lab)
        stranger = lab.stream(7)
        generation = lab.shell.status().generation
        first.say(protocol.KvSet(generation, "/global/0", b"1"), protocol.KvSet(generation - 1, "old", b"0"))
        first.say(protocol.KvPart(generation, ALL, 0, 2, b"x"))
        await lab.clock.settle()
        second.say(protocol.KvPart(generation, ALL, 1, 2, b"yz"))
        await lab.clock.settle()
        assert entries(second) == entries(first) == [("/global/0", b"1"), (ALL, b"1 2\nxyz")]
        assert entries(stranger) == []

    play(scenario)


def test_in_a_rendezvous_members_speak_and_each_for_itself():
    """One forged part of a later generation would otherwise keep every later ring from forming."""

    async def scenario(lab: Lab) -> None:
        first, second = await two_that_train(lab)
        stranger = lab.stream(7)
        generation = lab.shell.status().generation
        foreign = [
            protocol.KvPart(10**12, ALL, 0, 2, b"evil"),
            protocol.KvPart(generation, ALL, 0, 2, b"evil"),
            protocol.KvPart(generation, ALL, 1, 1, b"evil"),
            protocol.KvSet(generation, ALL, b"4 4\nevilevil"),
            protocol.KvSet(generation, "/global/0", b"evil"),
            protocol.KvSet(generation, "/global/1", b"x" * (LONGEST_VALUE + 1)),
        ]
        second.say(*foreign)
        stranger.say(foreign[1], protocol.KvSet(generation, "/global/1", b"evil"))
        await lab.clock.settle()
        assert len(lab.told("anomaly")) == len(foreign) + 2
        assert entries(first) == []
        first.say(protocol.KvPart(generation, ALL, 0, 2, b"x"))
        second.say(protocol.KvPart(generation, ALL, 1, 2, b"y"))
        await lab.clock.settle()
        assert entries(first) == [(ALL, b"1 1\nxy")]

    play(scenario)


def test_who_says_its_part_again_and_again_does_not_keep_all_others_busy():
    """Each time the whole, as large as the ring, would go to everybody."""

    async def scenario(lab: Lab) -> None:
        first, second = await two_that_train(lab)
        generation = lab.shell.status().generation
        first.say(protocol.KvPart(generation, ALL, 0, 2, b"x"))
        second.say(*[protocol.KvPart(generation, ALL, 1, 2, b"y")] * 1000)
        await lab.clock.settle()
        assert 1 <= len(entries(first)) <= MOST_KEYS

    play(scenario)


def test_a_bug_in_the_machine_ends_the_job_with_its_traceback_in_the_log(monkeypatch, caplog):
    async def scenario(lab: Lab) -> None:
        stream = lab.stream(0)
        await lab.clock.settle()

        def broken(*_: object) -> object:
            raise KeyError("a bug")

        monkeypatch.setattr(machine, "handle", broken)
        stream.say(protocol.Pulse(Activity.PREPARING, 0, 0, 0, 0.0, 0.0))
        await lab.clock.settle()
        result = await lab.running
        assert result.phase is Phase.FAILED and "KeyError: 'a bug'" in result.reason
        assert lab.shell.status().phase == "Failed" and lab.cluster.closed
        assert isinstance(stream.heard[-1], protocol.Release)

    with caplog.at_level(logging.CRITICAL):
        play(scenario)
    assert "a bug in the master ends the job" in caplog.text and "Traceback" in caplog.text


def test_what_a_listener_says_while_it_is_told_comes_after_what_it_was_told():
    """A disk that is full makes a note of the very event that could not be written."""

    async def scenario(lab: Lab) -> None:
        order: list[str] = []

        def told(event: EventRecord) -> None:
            order.append(event.kind)
            if event.kind == "scale":
                lab.shell.note(NoteKind.NOTICE, "the disk is full")
                order.append("told")

        lab.shell._on_event = told
        lab.shell.scale(3)
        assert order[:2] == ["scale", "told"] and order[-1] == "notice"

    play(scenario)


def test_a_listener_that_fails_ends_nothing_and_is_logged_once(caplog):
    async def scenario(lab: Lab) -> None:
        heard: list[str] = []

        def told(event: EventRecord) -> None:
            heard.append(event.kind)
            raise KeyError("a bug of a listener")

        lab.shell._on_event = told
        lab.shell.scale(3)
        lab.shell.scale(2)
        assert heard.count("scale") == 2 and lab.shell.status().wanted == 2
        assert not lab.shell.over

    play(scenario)
    assert caplog.text.count("KeyError: 'a bug of a listener'") == 1


def test_a_worker_that_cannot_be_started_is_an_event_and_not_a_wait():
    async def scenario(lab: Lab) -> None:
        lab.cluster.refuses = OSError("no room")
        await two_that_train(lab)
        lab.shell.scale(3)
        await lab.clock.settle()
        assert "could not be started: no room" in lab.shell.status().short
        lab.cluster.refuses = None
        await lab.clock.advance(6.0)
        assert lab.cluster.launched == [0, 1, 2, 3]

    play(scenario)


def test_the_log_of_a_worker_is_read_for_the_last_word():
    async def scenario(lab: Lab) -> None:
        lab.cluster.words[0] = "Killed by the kernel\n"
        lab.cluster.end(0, Cause.INVALID, "could not begin")
        await lab.clock.settle()
        assert lab.shell.status().reason.endswith("\nKilled by the kernel")

    play(scenario)


def test_commands_are_answered_with_the_new_status_or_the_reason():
    async def scenario(lab: Lab) -> None:
        assert (await lab.shell.answer(protocol.Scale(4))).wanted == 4
        assert lab.told("scale") == ["from 2 to 4 workers"]
        with pytest.raises(UsageError, match="at least 1"):
            await lab.shell.answer(protocol.Scale(0))
        assert (await lab.shell.answer(protocol.StopJob("enough"))).phase == "Stopped"

    play(scenario)


def test_a_stream_without_hello_and_a_refused_one_leave_nothing_behind():
    async def scenario(lab: Lab) -> None:
        lab.shell.deliver(inbox.KillAll())
        late = lab.stream(9)
        mute = lab.stream(10)
        mute.said.get_nowait()
        mute.say(READY)
        await lab.clock.settle()
        assert late.ended and late.heard == [protocol.Evicted("the job is over")]
        assert mute.ended and mute.heard == [] and not lab.shell.state.peers

    play(scenario)


def test_a_reconnect_ends_the_stream_before_it():
    async def scenario(lab: Lab) -> None:
        first, _ = await two_that_train(lab)
        again = lab.stream(
            0, plan=lab.shell.state.work.members.plan, joined=True, has_state=True, generation=2
        )
        await lab.clock.settle()
        assert first.ended and not again.ended
        await lab.clock.advance(5.0)
        assert len(lab.shell.status().workers) == 2 and lab.cluster.launched == [0, 1]

    play(scenario)


def test_notes_of_the_cluster_and_adopted_workers():
    async def scenario(lab: Lab) -> None:
        lab.cluster.note(NoteKind.POD, "worker 1 waits for room")
        await lab.clock.settle()
        assert lab.told("pod") == ["worker 1 waits for room"]
        lab.shell.adopt(Found((5,), (), 8), 2)
        assert {worker.worker_id for worker in lab.shell.status().workers} == {0, 1, 5}

    play(scenario)


def test_text_from_outside_is_harmless_in_words_and_in_facts():
    async def scenario(lab: Lab) -> None:
        stream = lab.stream(0)
        stream.say(protocol.Note(NoteKind.EDITED, "te\x1bxt \ud800"))
        await lab.clock.settle()
        (event,) = [event for event in lab.events if event.kind == "edited"]
        assert event.event["words"] == "te\\x1bxt \\ud800" and event.text.endswith("te\\x1bxt \\ud800")

    play(scenario)


def test_a_master_that_goes_on_without_the_workers_of_the_earlier_one_says_so():
    async def scenario(lab: Lab) -> None:
        lab.shell.returned()
        assert lab.shell.status().events[-1].event == {"type": "MasterReturned"}

    play(scenario)


def test_numbers_of_events_go_on_after_those_of_an_earlier_master():
    async def run() -> list[int]:
        told: list[EventRecord] = []
        shell = JobShell(OPTIONS, FakeCluster(), told.append, clock=FakeClock(), last_serial=41)
        shell.note(NoteKind.NOTICE, "here")
        return [event.serial for event in told]

    assert asyncio.run(run()) == [42]
