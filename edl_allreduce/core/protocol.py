"""Every message, once: what travels between worker and master is what their machines eat.

A worker attends the master over one stream in both directions. The stream itself is the sign of life: the
kernel closes it when the process dies.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field

from edl_allreduce.core.health import Activity
from edl_allreduce.core.progress import Length
from edl_allreduce.version import __version__

PROTOCOL = 6
"""Grows when master and worker of two versions could not understand each other."""
NOT_ASKED = -1
"""No step at which somebody wants to know the weights."""


@dataclass(frozen=True)
class Seat:
    """A place in a plan."""

    uid: str
    worker_id: int
    host: str


@dataclass(frozen=True)
class Plan:
    """The ring of one generation; the index in `members` is the rank."""

    generation: int
    members: tuple[Seat, ...]

    @property
    def size(self) -> int:
        return len(self.members)

    def rank_of(self, uid: str) -> int | None:
        return next((rank for rank, seat in enumerate(self.members) if seat.uid == uid), None)


# ------------------------------------------------------------------------------------ worker to master


@dataclass(frozen=True)
class Hello:
    """First message of a stream. `plan` is the newest that seats this worker and that it did not give up."""

    seat: Seat
    plan: Plan | None = None
    step: int = 0
    done: bool = False
    joined: bool = False
    """Whether it is in the ring of `plan`; False while it connects or has yet to leave an older one."""
    has_state: bool = False
    """Whether it holds the model of the job; means nothing before it heard of any generation."""
    generation: int = 0
    """The highest that this worker ever heard of."""
    stopping: str = ""
    """Why it was told to stop at a step boundary, maybe by a master that is no more."""
    tasks: tuple[tuple[int, int], ...] = ()
    """Where work is pulled: number and attempt of those that it has, or whose result it is about to say."""
    protocol: int = PROTOCOL
    version: str = __version__


@dataclass(frozen=True)
class Ready:
    """Preparations are over: the step is traced, the data is open."""

    step: int = 0
    has_state: bool = False
    """True only if it was in a ring. A checkpoint does not count: the living are further than it is, and
    whoever drains with the model would be let go because of it."""
    fingerprint: str = ""
    """Of the data; two workers that see different data must not train together."""
    total_steps: int = 0
    global_batch: int = 0
    records: int = 0
    """Size of the data, where work is pulled."""
    model: dict[str, str] = field(default_factory=dict, hash=False)
    """What else must be the same on all workers: files, variables, optimizer, versions."""
    length: Length | None = None
    """Of a training."""


@dataclass(frozen=True)
class Pulse:
    """Heartbeat: what the training thread is doing, and how far it is."""

    activity: Activity
    generation: int
    step: int
    position: int
    loss: float
    step_seconds: float
    """Median of the recent steps."""
    done: int = 0
    """Pieces of the current activity that are finished, where it has pieces (evaluation)."""
    ledger: dict[str, float] = field(default_factory=dict, hash=False)
    """Where its time went since its process began: seconds by the name of a `goodput.Bucket`."""
    compute_seconds: float = 0.0
    """Median of the recent steps: its own part of one, before it meets the others."""
    best_compute_seconds: float = 0.0
    """The lowest median that it had in this ring."""


@dataclass(frozen=True)
class Entered:
    """Begins to connect to the ring of this generation."""

    generation: int


@dataclass(frozen=True)
class Joined:
    """Connected, and agreed on the state."""

    generation: int
    step: int
    position: int = 0


@dataclass(frozen=True)
class Reformed:
    """The first step in a new ring is over: where a survivor's pause went, in seconds."""

    generation: int
    size: int
    notice: float
    plan: float
    join: float
    sync: float
    first_step: float

    @property
    def pause(self) -> float:
        return self.notice + self.plan + self.join + self.sync + self.first_step


@dataclass(frozen=True)
class Out:
    """Left the ring of this generation; waits for a plan. `reason` is empty at a voted boundary."""

    generation: int
    step: int
    reason: str = ""


@dataclass(frozen=True)
class Done:
    """Trained the last step, or stopped at a boundary as asked."""

    generation: int
    step: int
    stopped: bool = False
    position: int = 0
    loss: float = math.nan
    """Of the very last step; heartbeats are older."""
    failure: str = ""
    """Why the job must not count as done: there is nothing to export."""
    warning: str = ""
    """What people should know about the result."""
    fingerprint: str = ""
    """Of the weights, SHA-256, where the job is reproducible."""


@dataclass(frozen=True)
class Draining:
    """Was told to leave."""


@dataclass(frozen=True)
class Failed:
    """User code raised, or the job cannot work as described (`invalid`)."""

    invalid: bool
    summary: str
    """The exception in one line."""
    story: str
    """What people need to mend it; the whole traceback is in the worker's log."""
    place: str = ""
    """Exception, line and step, when the same again would prove that trying is of no use."""


@dataclass(frozen=True)
class Exported:
    """The result is written; `error` says why not."""

    path: str
    error: str = ""


@dataclass(frozen=True)
class Evaluated:
    """Metrics over the whole validation data; every rank reports the same."""

    step: int
    metrics: dict[str, float]


@dataclass(frozen=True)
class TaskDone:
    """A task of an evaluation or prediction job is finished."""

    number: int
    attempt: int
    sums: list[float]
    """What it adds to the metrics; empty for predictions."""


@dataclass(frozen=True)
class Concluded:
    """The result of all tasks together."""

    metrics: dict[str, float]
    path: str


class NoteKind(enum.StrEnum):
    """What a note is about: the word by which people filter events."""

    WARNING = "warning"
    """Must not be overlooked."""
    NOTICE = "notice"
    NAN = "nan"
    """The loss of a step is not finite."""
    EDITED = "edited"
    """Files of the model are not what they were when the job began."""
    RESUME = "resume"
    """Where training goes on."""
    TASKS = "tasks"
    POD = "pod"
    """Why a pod does not start."""
    STOP = "stop"
    CONTROLLER = "controller"


@dataclass(frozen=True)
class Note:
    """Something that people should know about this worker; becomes an event of the job."""

    kind: NoteKind
    text: str
    once: bool = False
    """Every worker says the same: the first who says it counts."""


@dataclass(frozen=True)
class Checkpointed:
    """A checkpoint is in `path`; or `error` says why there is none."""

    step: int
    path: str
    error: str = ""
    seconds: float = field(default=0.0, compare=False)
    """For which it was written, in the background."""
    fingerprint: str = ""
    """Of the weights, SHA-256, where the job is reproducible."""


@dataclass(frozen=True)
class Differs:
    """These workers hold other weights than most of their ring, after `step` steps. Nothing was applied
    since, and every member of the ring says the same. Named by uid: the plan of that ring may be past."""

    generation: int
    step: int
    uids: tuple[str, ...]
    decided: bool = True
    """False where there is no majority: then these are all who contradict each other."""
    fingerprints: tuple[str, ...] = ()
    """Of their weights, as far as ranks compare it, in the same order. None where not all could tell."""


@dataclass(frozen=True)
class Weighed:
    """The answer to `NewPlan.weigh`: all members of the ring hold weights with this fingerprint then."""

    step: int
    fingerprint: str


@dataclass(frozen=True)
class BadRecords:
    """Records that cannot be read and were left out. A record is told each time that it is met."""

    data: str
    """Training data, validation data, …"""
    records: dict[int, tuple[str, int]]
    """By index: what is wrong, and how many more records are lost with it, as far as one can tell."""


@dataclass(frozen=True)
class KvSet:
    """A key of the rendezvous of one generation."""

    generation: int
    key: str
    value: bytes


@dataclass(frozen=True)
class KvPart:
    """One rank's part of a key, which is passed on when all parts are there: members would get as many
    messages as there are members otherwise."""

    generation: int
    key: str
    number: int
    of: int
    value: bytes


FromWorker = (
    Hello | Ready | Pulse | Entered | Joined | Reformed | Out | Done | Draining | Failed | Exported | Note
    | Evaluated | TaskDone | Concluded | Checkpointed | Differs | Weighed | BadRecords
    | KvSet | KvPart
)  # fmt: skip

# ------------------------------------------------------------------------------------ master to worker


@dataclass(frozen=True)
class Welcome:
    """The answer to every hello that is accepted: somebody is there."""


@dataclass(frozen=True)
class NewPlan:
    """The ring of the next generation. Without `abort` the switch is at a step boundary."""

    plan: Plan
    abort: bool
    reason: str
    weigh: int = NOT_ASKED
    """After so many steps rank 0 says what the weights are (`Weighed`)."""


@dataclass(frozen=True)
class AbortRing:
    """Break the ring of this generation now; a plan follows."""

    generation: int
    reason: str


@dataclass(frozen=True)
class KvEntry:
    """A key that some member set; only members of that generation get it."""

    generation: int
    key: str
    value: bytes


@dataclass(frozen=True)
class Stop:
    """Stop at the next step boundary."""

    reason: str


@dataclass(frozen=True)
class Drain:
    """Leave at a step boundary, as after SIGTERM (the job shrinks)."""


@dataclass(frozen=True)
class DoTask:
    """Evaluate or predict the records [start, stop)."""

    number: int
    attempt: int
    start: int
    stop: int
    version: int
    """The step of the checkpoint to use."""


@dataclass(frozen=True)
class Conclude:
    """All tasks are done: make one result of them."""

    sums: list[float]
    tasks: int
    records: int


@dataclass(frozen=True)
class Export:
    """Write the result."""


@dataclass(frozen=True)
class Release:
    """The job is over: exit 0."""


@dataclass(frozen=True)
class Evicted:
    """This worker is no longer part of the job: exit."""

    reason: str
    keeps: bool = True
    """Whether what it holds is worth a checkpoint."""


FromMaster = (
    Welcome | DoTask | Conclude | NewPlan | AbortRing | KvEntry | Stop | Drain | Export | Release | Evicted
)

# ----------------------------------------------------------------------------------- commands to master


@dataclass(frozen=True)
class Ask:
    """Ask for the job's status."""


@dataclass(frozen=True)
class Scale:
    """Change the number of workers."""

    num_workers: int


@dataclass(frozen=True)
class StopJob:
    """Stop the job at a step boundary."""

    reason: str = "asked by the user"


@dataclass(frozen=True)
class DrainWorker:
    """Let one worker leave at a step boundary; another one takes its place."""

    worker_id: int


Command = Ask | Scale | StopJob | DrainWorker
