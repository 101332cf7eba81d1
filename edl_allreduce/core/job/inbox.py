"""What can happen to a job, and what its machine wants done about it."""

from __future__ import annotations

from dataclasses import dataclass

from edl_allreduce.core import protocol
from edl_allreduce.core.causes import Cause
from edl_allreduce.core.events import Event as Told
from edl_allreduce.core.job.inheritance import Inheritance

# --------------------------------------------------------------------------------------------- events


@dataclass(frozen=True)
class Connected:
    """A worker said hello over a new connection; `link` counts connections, over all workers."""

    hello: protocol.Hello
    link: int


@dataclass(frozen=True)
class Heard:
    """A worker said something more over its connection."""

    uid: str
    link: int
    message: protocol.FromWorker


@dataclass(frozen=True)
class HungUp:
    """A connection ended. That says little about the process: it may come back over another."""

    uid: str
    link: int


@dataclass(frozen=True)
class Ended:
    """The cluster says that a worker's process or pod is over."""

    worker_id: int
    cause: Cause
    text: str


@dataclass(frozen=True)
class LaunchFailed:
    """The cluster could not start a worker. `certain`: trying again would not help."""

    worker_id: int
    certain: bool
    text: str


@dataclass(frozen=True)
class LogRead:
    """The end of a worker's log, as it was asked for."""

    worker_id: int
    text: str


@dataclass(frozen=True)
class Scale:
    """Somebody wants another number of workers. `leaving` go first when they are to be fewer."""

    count: int
    leaving: tuple[int, ...] = ()


@dataclass(frozen=True)
class Drain:
    """Somebody wants this worker to leave at a step boundary."""

    worker_id: int


@dataclass(frozen=True)
class Stop:
    """Somebody wants the job to stop at a step boundary."""

    reason: str


@dataclass(frozen=True)
class KillAll:
    """Somebody wants the job to end at once, without a result."""


@dataclass(frozen=True)
class Adopt:
    """Workers that an earlier master of this job left; `running` of them may hold the model."""

    living: tuple[int, ...]
    running: tuple[int, ...]
    next_id: int
    wanted: int


@dataclass(frozen=True)
class Inherit:
    """What an earlier master of this job left; `wall`: what a calendar's clock says now."""

    left: Inheritance
    living: tuple[int, ...]
    wall: float


@dataclass(frozen=True)
class Tick:
    """Time passed."""


@dataclass(frozen=True)
class Note:
    """The cluster, or the shell around the machine, wants people to know something."""

    kind: protocol.NoteKind
    text: str


Event = (
    Connected | Heard | HungUp | Ended | LaunchFailed | LogRead
    | Scale | Drain | Stop | KillAll | Adopt | Inherit | Tick | Note
)  # fmt: skip

# -------------------------------------------------------------------------------------------- effects


@dataclass(frozen=True)
class Send:
    """Over this very connection: what is meant for it reaches no later one of the same worker."""

    link: int
    message: protocol.FromMaster


@dataclass(frozen=True)
class HangUp:
    """End this connection, after what was sent over it."""

    link: int


@dataclass(frozen=True)
class Launch:
    """Start a worker. The cluster answers with LaunchFailed, or some day with Ended."""

    worker_id: int


@dataclass(frozen=True)
class Terminate:
    """Ask a worker to drain."""

    worker_id: int


@dataclass(frozen=True)
class Kill:
    """End a worker now."""

    worker_id: int


@dataclass(frozen=True)
class ReadLog:
    """Answer with LogRead."""

    worker_id: int


@dataclass(frozen=True)
class Tell:
    """An event for people. `quiet`: the same story once more, for the log only."""

    event: Told
    quiet: bool = False


@dataclass(frozen=True)
class Over:
    """The job is over, and its workers had their time to leave."""


Effect = Send | HangUp | Launch | Terminate | Kill | ReadLog | Tell | Over
