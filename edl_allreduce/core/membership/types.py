"""What membership is about: who is there, what happens, what is to be done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from edl_allreduce.core.causes import Cause
from edl_allreduce.core.deadlines import Deadlines
from edl_allreduce.core.protocol import Done, Draining, Entered, Hello, Joined, Out, Plan, Ready, Seat

KEEPALIVE_SECONDS = 20.0
"""After so long both ends of a connection know that nothing passes any more."""

# ---------------------------------------------------------------------------------------------- state


class Standing(Enum):
    """Where a worker stands. Only PREPARING is no candidate for a plan."""

    PREPARING = "preparing"
    """Said hello; imports, builds and traces."""
    WAITING = "waiting"
    """Ready, in no ring."""
    RING = "ring"
    """In the current plan: entering, agreeing on state, or training."""
    DONE = "done"
    """Trained the last step; keeps its state until everybody has it."""
    ABSENT = "absent"
    """Its connection to the master is gone, and its ring went on without it; taken back when it returns."""


@dataclass(frozen=True)
class Member:
    """One worker process. Identity is the uid: over whatever connection it comes back, it is the same member;
    a process in its place is another one."""

    seat: Seat
    standing: Standing
    since: float
    """When the standing began."""
    generation: int = 0
    """The ring that it is in, or was in last."""
    has_state: bool = False
    """Holds the model of the job, not just a freshly initialised one."""
    sat_in_ring: bool = False
    """Had a seat since it last said what it holds: it may have got the model without being heard."""
    step: int = 0
    entered: bool = False
    """Began to connect to the ring of its generation."""
    joined: bool = False
    """Connected, and agreed with all others on the state."""
    proven: bool = False
    """Trained in a ring that worked; one that never did may be what is wrong with a ring."""
    draining: bool = False
    expected: bool = False
    """Known from another member's plan after a master restart, not heard yet."""
    link: int = 0
    """The number of its connection; a later one takes the place of an earlier one."""
    away: float | None = None
    """Since when it has no connection to the master. That says little about the process: it may train on."""

    @property
    def may_hold(self) -> bool:
        """Whether the model may be lost with it."""
        return self.has_state or self.sat_in_ring


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    wanted: int
    """Workers that the job should have; 0 when nobody starts them (by hand)."""
    minimum: int = 1
    cool_down: float = 1.0
    """Seconds for which arrivals are gathered into one re-form."""
    deadlines: Deadlines = field(default_factory=Deadlines)
    recover_until: float = 0.0
    """A restarted master plans nothing before this time: the old ring may still report. 0: no restart."""
    master_grace: float = 60.0
    """How long a worker trains on without a master before it ends by itself."""
    standby: int = 0
    """Workers beyond the wanted ones: while there are enough in the ring they are ready and wait."""

    @property
    def patience(self) -> float:
        return patience(self.deadlines, self.master_grace)


def patience(deadlines: Deadlines, master_grace: float) -> float:
    """How long those are waited for who hold the only model, or when nobody is heard: until they ended by
    themselves, even if they noticed late that their connection was gone."""
    return max(deadlines.reunion, master_grace + 2 * deadlines.silent + KEEPALIVE_SECONDS)


@dataclass(frozen=True)
class State:
    """Everything that the machine knows."""

    options: Options
    members: Mapping[str, Member] = field(default_factory=dict)
    plan: Plan | None = None
    generation: int = 0
    """The highest generation ever seen."""
    leads: bool = False
    """This master published a plan of its own; from then on no other ring is taken over."""
    leaving: Plan | None = None
    """The ring that members leave at a step boundary, while they have not entered the current one."""
    leaver_lost: float | None = None
    """When somebody who is in `leaving`, but not in the plan, was lost: the others may wait for it."""
    unheard: frozenset[int] = frozenset()
    """Workers of an earlier master that live and have not reported."""
    heard_since: float = 0.0
    """When somebody came back after nobody had a connection: the others get as long from then on."""
    gone: frozenset[str] = frozenset()
    """Lost or evicted; whoever of them comes back is turned away."""
    usual_step: float = 0.0
    """Seconds of a usual step, for deadlines of user code."""
    broken_since: float | None = None
    """When the current ring was first reported broken."""
    entered_since: float | None = None
    """When the first member entered the current ring."""
    joined: int = 0
    """How many said that they joined it."""
    aborted: int = 0
    """The generation that was told to abort."""
    moved: bool = False
    """Somebody left the current ring with enough steps to show that the ring worked."""
    stalls: tuple[int, ...] = ()
    """The last generations in a row that broke within their first steps although nobody was lost."""
    losses: tuple[str, ...] = ()
    """Why members of the current plan are gone, for the next plan's reason."""
    waiting_for: str = ""
    """Why no plan is published although one is needed."""
    stopping: bool = False
    """Only a last step is to be made, and nobody is started any more."""
    finished: bool = False

    def may_report(self, now: float) -> bool:
        """Whether workers of an earlier master may yet say that they hold the model.

        Where people start workers nobody knows who lives: there was a ring if anybody heard of a generation.
        """
        options = self.options
        by_hand = options.wanted == 0 and options.recover_until > 0
        awaited = bool(self.unheard) or (by_hand and self.generation > 0 and not self.leads)
        return now < options.recover_until + (options.deadlines.reunion if awaited else 0.0)

    def alive(self) -> list[Member]:
        """Members of the current plan that still live and are part of it, in rank order."""
        if self.plan is None:
            return []
        known = (self.members.get(seat.uid) for seat in self.plan.members)
        return [m for m in known if m is not None and m.standing is not Standing.ABSENT]

    def takes(self, staying: int) -> int | None:
        """How many newcomers have a place beside so many who stay; None: all of them."""
        return max(0, self.options.wanted - staying) if self.options.standby else None

    def full(self) -> bool:
        """Whether there are workers that stand by, because the ring has as many as are wanted."""
        return self.plan is not None and self.takes(sum(not m.draining for m in self.alive())) == 0

    def stands_by(self, uid: str) -> bool:
        """Whether it is ready, and the ring has as many as are wanted without it. A worker with a model never
        stands by: its model grows old, and nobody could tell it later from the one that the ring had."""
        member = self.members.get(uid)
        if self.plan is None or member is None or member.has_state:
            return False
        if member.standing is not Standing.WAITING or member.draining or self.plan.rank_of(uid) is not None:
            return False
        return self.full()

    def without_a_place(self) -> list[Member]:
        """Workers that hold the model of an earlier ring, while the current one is full: those that lost
        their connection, were replaced, and are back."""
        return [m for m in self.newcomers() if m.has_state] if self.full() else []

    def newcomers(self) -> list[Member]:
        """Workers that are ready and not in the current plan, by id."""
        seated = {seat.uid for seat in self.plan.members} if self.plan else set()
        ready = (
            m
            for m in self.members.values()
            if m.standing is Standing.WAITING
            and not m.draining
            and m.away is None
            and m.seat.uid not in seated
        )
        return sorted(ready, key=lambda m: m.seat.worker_id)

    def let_go(self) -> list[Member]:
        """Workers that hold the model, were left out of the plan because they drain, and still live."""
        seated = {seat.uid for seat in self.plan.members} if self.plan else set()
        return [
            m
            for m in self.members.values()
            if m.standing is Standing.WAITING
            and m.draining
            and m.has_state
            and m.away is None
            and m.seat.uid not in seated
        ]


# --------------------------------------------------------------------------------------------- events


Message = Hello | Ready | Entered | Joined | Out | Done | Draining
"""What a worker says about its membership."""


@dataclass(frozen=True)
class Heard:
    """A worker said something over its connection `link`; the master counts connections."""

    uid: str
    message: Message
    link: int = 0


@dataclass(frozen=True)
class Away:
    """A worker's connection ended: it died, or only the network did. It may come back over another one."""

    uid: str
    link: int = 0


@dataclass(frozen=True)
class Lost:
    """A worker is gone for good; `cause` is for people."""

    uid: str
    cause: str


@dataclass(frozen=True)
class LostTogether:
    """Several are gone at once: the next plan is made without all of them."""

    losses: tuple[Lost, ...]


@dataclass(frozen=True)
class Unheard:
    """Which workers of an earlier master live and have not reported; any of them may hold the model."""

    worker_ids: frozenset[int]


@dataclass(frozen=True)
class Wanted:
    """The user or the autoscaler changed the number of workers."""

    count: int


@dataclass(frozen=True)
class Stopping:
    """The job is to stop: those who hold the model make the last step, however few they are."""


@dataclass(frozen=True)
class Tick:
    """Time passed."""

    usual_step: float = 0.0


Event = Heard | Away | Lost | LostTogether | Unheard | Wanted | Stopping | Tick

# -------------------------------------------------------------------------------------------- actions


@dataclass(frozen=True)
class Publish:
    """Give this plan to all its members and to those who leave. `abort`: do not wait for the boundary."""

    plan: Plan
    abort: bool
    reason: str


@dataclass(frozen=True)
class Abort:
    """Tell the members to break the ring of this generation; they answer with Out."""

    generation: int
    uids: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Evict:
    """End this worker; it is no longer a member."""

    uid: str
    reason: str
    cause: Cause = Cause.SILENT
    """Silent: it is cut off, or holds on to what is no more. Stuck: others waited for it for too long.
    Invalid: something is wrong with it that another one in its place may have as well."""


@dataclass(frozen=True)
class Finish:
    """Training is complete: every member of the last ring holds the final state."""

    uids: tuple[str, ...]
    step: int


@dataclass(frozen=True)
class Anomaly:
    """A worker said what cannot be true; it was ignored, and people are told."""

    uid: str
    text: str


Action = Publish | Abort | Evict | Finish | Anomaly
