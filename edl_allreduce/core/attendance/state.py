"""What a worker knows of the protocol: its stage, its rings, its connection, and the master's last word."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from edl_allreduce.core import protocol
from edl_allreduce.core.deadlines import Deadlines
from edl_allreduce.core.protocol import Plan, Seat

# ---------------------------------------------------------------------- what the training thread is told


@dataclass(frozen=True)
class MasterGone:
    """Nobody answered for the whole grace period."""

    seconds: float


@dataclass(frozen=True)
class Leave:
    """This worker drains and is in no ring."""


LastWord = protocol.Export | protocol.Release | protocol.Evicted | MasterGone
NextOrder = protocol.NewPlan | LastWord | Leave
"""What to do outside of a ring, where workers train."""
Pulled = (
    protocol.DoTask | protocol.Conclude | protocol.Release | protocol.Evicted | MasterGone | Leave
)  # fmt: skip
"""What to do next, where workers pull tasks."""

FINAL = (protocol.Release, protocol.Evicted, MasterGone)
"""Last words after which there is nothing to be said."""

# ---------------------------------------------------------------------------------------------- state


class Stage(Enum):
    """What this worker does, as far as the protocol is concerned."""

    PREPARING = "preparing"
    """Imports, builds and traces."""
    WAITING = "waiting"
    """Ready, in no ring."""
    ENTERING = "entering"
    """Connects to the ring of its plan, or has yet to say that it cannot."""
    TRAINING = "training"
    """Connected, and agreed with the others on the state."""
    DONE = "done"
    """Trained the last step of its plan; keeps the state until everybody has it."""


RING = (Stage.ENTERING, Stage.TRAINING)
"""In a ring, so that a doomed one must be broken."""


@dataclass(frozen=True)
class State:
    """Everything that the machine knows. Times are in seconds of the caller's clock."""

    seat: Seat
    deadlines: Deadlines = field(default_factory=Deadlines)
    grace: float = 60.0
    """How long this worker trains on without a master."""

    stage: Stage = Stage.PREPARING
    plan: Plan | None = None
    """The ring that this worker is in; after Done the one that it was in."""
    newest: protocol.NewPlan | None = None
    preparing: int = 0
    """The highest generation to which this worker was told to connect beforehand."""
    prepared: int = 0
    """The highest generation to which this worker has connected, or tried to."""
    doomed: int = 0
    """Rings up to this generation are to be left at once."""
    gave_up: int = 0
    """The highest generation that this worker left before its time, or at a voted boundary."""
    has_state: bool = False
    """Holds the model of the job."""
    next_place: tuple[int, bytes] | None = None
    """The newest generation whose place is announced, and that place."""
    here: tuple[int, bytes] | None = None
    """The newest generation that a holder of the model has entered, and the place where it goes on."""

    ready: protocol.Ready | None = None
    """Said again after a reconnect, also from a ring: a new master learns the job's length from it."""
    lasting: tuple[protocol.FromWorker, ...] = ()
    """The last report of each kind that is said again after a reconnect: nobody else can say it."""
    exports: bool = False
    """The order to write the result was handed on."""
    stop: str = ""
    """Why it was told to stop at a step boundary."""
    draining: bool = False
    last: LastWord | None = None
    pulled: tuple[Pulled, ...] = ()
    """Tasks and ends, in the order in which they came."""
    task: protocol.DoTask | None = None
    """The task on which the training thread works."""
    unsaid: tuple[protocol.FromWorker, ...] = ()
    """Reports that wait for a master that listens."""

    link: int = 0
    """The number of the connection, or of the attempt to open it."""
    opened_at: float = 0.0
    """When that was begun."""
    linked: bool = False
    """The master was heard over this connection."""
    lost_at: float | None = None
    """Since when nobody answers; None while somebody does."""
    retry_at: float | None = None
    """When to try again; None while a connection or an attempt is there."""
    abort_at: float | None = None
    """When to break the doomed ring again; None when nothing is to be broken."""
    closing: bool = False
    """Says what is still to be said, then hangs up."""
    over: bool = False
    """There is no connection and there will be none."""
    parted: bool = False
    """The master was there when this worker hung up and ended the connection in order, so it knows what was
    said last."""

    @property
    def uid(self) -> str:
        return self.seat.uid
