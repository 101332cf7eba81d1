"""One turn of the machine: the state as it becomes, and what is to be done, in order.

Functions of the machine take a turn and change it. The states themselves are values, so whoever holds the one
from before the turn still has it.
"""

from __future__ import annotations

from typing import Any, TypeVar

from edl_allreduce.core import events, goodput, protocol
from edl_allreduce.core.job.inbox import Effect, Send, Tell, Terminate
from edl_allreduce.core.job.lifecycle import FINAL, Phase, allowed
from edl_allreduce.core.job.state import JobState, Peer, Slot

SHOWN_REASON = 300
"""Characters of a reason in one line; the whole story comes at the end, once."""


T = TypeVar("T")


def changed(value: T, **fields: Any) -> T:
    """As `dataclasses.replace`, but without a call per field: every heartbeat makes a new state.

    Only for frozen classes that compute nothing when they are made, as those of `state` are.
    """
    new = object.__new__(type(value))
    known = value.__dict__
    assert fields.keys() <= known.keys(), f"{type(value).__name__} has no {fields.keys() - known.keys()}"
    new.__dict__.update(known)
    new.__dict__.update(fields)
    return new


class Turn:
    """What one event makes of a state."""

    def __init__(self, state: JobState, now: float) -> None:
        self.state = state
        self.now = now
        self.effects: list[Effect] = []

    # ------------------------------------------------------------------------------------------ state

    def change(self, **fields: Any) -> None:
        self.state = changed(self.state, **fields)

    def peer(self, uid: str, **fields: Any) -> Peer:
        """Change what is known of a connected worker."""
        peer = changed(self.state.peers[uid], **fields)
        self.change(peers={**self.state.peers, uid: peer})
        return peer

    def slot(self, worker_id: int, **fields: Any) -> None:
        """Change what is known of a worker of the cluster; workers that came by themselves have no slot."""
        slot = self.state.slots.get(worker_id)
        if slot is not None:
            self.change(slots={**self.state.slots, worker_id: changed(slot, **fields)})

    def without_slot(self, worker_id: int) -> Slot | None:
        slot = self.state.slots.get(worker_id)
        self.change(slots={i: other for i, other in self.state.slots.items() if i != worker_id})
        return slot

    def keeping(self, **fields: Any) -> None:
        self.change(keeping=changed(self.state.keeping, **fields))

    def progress(self, **fields: Any) -> None:
        self.change(progress=changed(self.state.progress, **fields))

    def ending(self, **fields: Any) -> None:
        self.change(ending=changed(self.state.ending, **fields))

    # ---------------------------------------------------------------------------------------- effects

    def do(self, effect: Effect) -> None:
        self.effects.append(effect)

    def tell(self, event: events.Event, *, quiet: bool = False) -> None:
        self.effects.append(Tell(event, quiet))

    def send(self, uid: str, message: protocol.FromMaster) -> None:
        """To whoever is connected; others hear what still matters when they come back."""
        peer = self.state.peers.get(uid)
        if peer is not None:
            self.effects.append(Send(peer.link, message))

    def send_all(self, message: protocol.FromMaster) -> None:
        for peer in self.state.peers.values():
            self.effects.append(Send(peer.link, message))

    # ----------------------------------------------------------------------------------------- phases

    @property
    def over(self) -> bool:
        return self.state.phase in FINAL

    def move(self, phase: Phase) -> bool:
        """Go to another phase, if the table knows that way."""
        before = self.state.phase
        if phase is before:
            return True
        if not allowed(before, phase):
            self.tell(events.Anomaly(f"the job cannot go from {before.value} to {phase.value}"))
            return False
        self.change(phase=phase)
        return True

    def end(self, phase: Phase, reason: str) -> None:
        """The job is over: everybody may go."""
        if self.over or not self.move(phase):
            return
        state = self.state
        self.change(reason=reason)
        self.progress(trained=state.progress.trained.turn(False, self.now))
        self.ending(over_by=self.now + state.options.deadlines.failure_detection)
        self.change(goodput=goodput.end(state.goodput, self.now))
        spent = goodput.report(self.state.goodput)
        self.tell(events.TimeAccounted(spent.wall, spent.seconds, spent.worker_wall, spent.worker_seconds))
        self.tell(events.JobEnded(phase.value, line(reason)))
        self.send_all(protocol.Release())
        for worker_id, slot in state.slots.items():
            if not slot.uid:  # it never said hello, so nobody can release it
                self.do(Terminate(worker_id))


def line(text: str) -> str:
    """The first line, and not too much of it."""
    first = text.strip().partition("\n")[0]
    return first if len(first) <= SHOWN_REASON else first[: SHOWN_REASON - 1] + "…"
