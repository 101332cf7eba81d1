"""A worker process and its ring, as far as a world plays them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from edl_allreduce.core import protocol
from edl_allreduce.core.attendance.state import Stage
from edl_allreduce.core.attendance.state import State as Attendance
from edl_allreduce.core.membership import types as m
from edl_allreduce.core.protocol import Plan


class Life(Enum):
    """Whether a worker's process runs."""

    UP = "up"
    FROZEN = "frozen"
    """Does nothing and closes no connection."""
    DEAD = "dead"


class Doing(Enum):
    """Where a worker's training thread is."""

    PREPARING = "preparing"
    IDLE = "idle"
    """Asks for the next order."""
    EXPECTING = "expecting"
    """A newcomer that waits for somebody of the old ring."""
    JOINING = "joining"
    TRAINING = "training"


@dataclass(frozen=True)
class Worker:
    """A worker process: its machine, its training thread, its connections."""

    machine: Attendance
    life: Life = Life.UP
    doing: Doing = Doing.PREPARING
    order: protocol.NewPlan | None = None
    """What its training thread follows, while it expects others, connects or trains."""
    generation: int = 0
    """The last generation that it followed."""
    step: int = 0
    has_state: bool = False
    """True, whatever the master believes."""
    odd: bool = False
    """It would train something else: a ring of odd and other workers forms, but cannot make a step."""
    aborted: int = 0
    """Its connections to rings up to this generation are closed."""
    connecting: Plan | None = None
    """The ring to which it connects beforehand."""
    stands: int = 0
    """The last generation to which it connected beforehand."""
    failed: int = 0
    """The last generation to which it could not connect beforehand."""
    connected: bool = False
    """Its wire to the master works."""
    attended: bool = False
    """The master knows of this connection."""
    inbox: tuple[protocol.FromMaster, ...] = ()
    outbox: tuple[protocol.FromWorker | m.Away, ...] = ()

    @property
    def uid(self) -> str:
        return self.machine.seat.uid

    @property
    def up(self) -> bool:
        return self.life is Life.UP

    @property
    def ring(self) -> Plan | None:
        """The ring to which it connects, or in which it trains."""
        inside = self.doing in (Doing.JOINING, Doing.TRAINING)
        return self.order.plan if inside and self.order is not None else None

    @property
    def newest(self) -> int:
        return self.machine.newest.plan.generation if self.machine.newest is not None else 0

    def begun(self, plan: Plan) -> bool:
        """Whether it connects, or has connected, to this ring beforehand."""
        return self.connecting == plan or self.stands == plan.generation

    def finished(self, plan: Plan) -> bool:
        """Whether it trained the last step in this ring, or found that there was none to train."""
        return self.machine.stage is Stage.DONE and self.machine.plan == plan

    def gave_up(self, plan: Plan) -> bool:
        """Whether it will never come to this ring, or has left it: its ends of the connections are closed."""
        outside = (
            self.generation >= plan.generation and self.ring != plan and self.doing is not Doing.EXPECTING
        )
        return self.life is Life.DEAD or self.aborted >= plan.generation or outside


@dataclass(frozen=True)
class Course:
    """How far a ring is: what its first member to complete a step settled for all of them."""

    step: int
    boundary: int | None = None
    """The step after which it ends, once that is voted."""
    everybody_leaves: bool = False
    stop: bool = False
    """All stop here, as somebody was told to."""


def ids(plan: Plan) -> str:
    """Of the members of a ring."""
    return "".join(seat.uid for seat in plan.members)
