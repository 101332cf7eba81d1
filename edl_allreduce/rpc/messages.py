"""The messages. Membership events travel as they are; the rest is defined here.

A worker attends the master over one stream in both directions. The stream itself is the sign of life: the
kernel closes it when the process dies.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from edl_allreduce.core.health import Activity
from edl_allreduce.core.membership.types import Plan, Seat
from edl_allreduce.core.progress import Length

PROTOCOL = 3
"""Grows when master and worker of two versions could not understand each other."""

WARNING = "warning"
"""The kind of notes and events that people must not overlook."""


class _Message(msgspec.Struct, frozen=True, tag=True):
    """The class name is the tag on the wire."""


# ------------------------------------------------------------------------------------ worker to master


class Hello(_Message, frozen=True):
    """First message of a stream. `plan` tells a restarted master which ring this worker is in."""

    seat: Seat
    protocol: int
    version: str
    plan: Plan | None = None
    step: int = 0
    done: bool = False
    joined: bool = False
    has_state: bool = False
    generation: int = 0
    """The highest that this worker ever heard of."""


class Ready(_Message, frozen=True):
    """Preparations are over: the step is traced, the data is open."""

    step: int
    has_state: bool
    fingerprint: str
    """Of the data; two workers that see different data must not train together."""
    total_steps: int
    global_batch: int
    records: int = 0
    """Size of the data, where work is pulled."""
    model: dict[str, str] = {}
    """What else must be the same on all workers: files, variables, optimizer, versions."""
    length: Length | None = None
    """Of a training."""


class Pulse(_Message, frozen=True):
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


class Entered(_Message, frozen=True):
    """Begins to connect to the ring of this generation."""

    generation: int


class Joined(_Message, frozen=True):
    """Connected, and agreed on the state."""

    generation: int
    step: int
    position: int


class Reformed(_Message, frozen=True):
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


class Out(_Message, frozen=True):
    """Left the ring of this generation; waits for a plan."""

    generation: int
    step: int
    reason: str


class Done(_Message, frozen=True):
    """Trained the last step, or stopped at a boundary as asked."""

    generation: int
    step: int
    stopped: bool
    position: int = 0
    loss: float = math.nan
    """Of the very last step; heartbeats are older."""
    failure: str = ""
    """Why the job must not count as done: there is nothing to export."""
    warning: str = ""
    """What people should know about the result."""


class Draining(_Message, frozen=True):
    """Was told to leave."""


class Failed(_Message, frozen=True):
    """User code raised, or the job cannot work as described (`invalid`)."""

    invalid: bool
    summary: str
    """The exception in one line."""
    story: str
    """What people need to mend it; the whole traceback is in the worker's log."""
    place: str = ""
    """Exception, line and step, when the same again would prove that trying is of no use."""


class Exported(_Message, frozen=True):
    """The result is written; `error` says why not."""

    path: str
    error: str = ""


class Evaluated(_Message, frozen=True):
    """Metrics over the whole validation data; every rank reports the same."""

    step: int
    metrics: dict[str, float]


class TaskDone(_Message, frozen=True):
    """A task of an evaluation or prediction job is finished."""

    number: int
    attempt: int
    sums: list[float]
    """What it adds to the metrics; empty for predictions."""


class Concluded(_Message, frozen=True):
    """The result of all tasks together."""

    metrics: dict[str, float]
    path: str


NOTICE, NAN = "notice", "nan"
"""Kinds of notes that are about the job, whoever says it."""


class Note(_Message, frozen=True):
    """Something that people should know about this worker; becomes an event of the job."""

    kind: str
    text: str
    once: bool = False
    """Every worker says the same: the first who says it counts."""


class Checkpointed(_Message, frozen=True):
    """A checkpoint is in `path`; or `error` says why there is none."""

    step: int
    path: str
    error: str = ""


class BadRecords(_Message, frozen=True):
    """Records that cannot be read and were left out. A record is told each time that it is met."""

    data: str
    """Training data, validation data, …"""
    records: dict[int, tuple[str, int]]
    """By index: what is wrong, and how many more records are lost with it, as far as one can tell."""


class KvSet(_Message, frozen=True):
    """A key of the rendezvous of one generation."""

    generation: int
    key: str
    value: bytes


class KvPart(_Message, frozen=True):
    """One rank's part of a key, which is passed on when all parts are there: members would get as many
    messages as there are members otherwise."""

    generation: int
    key: str
    number: int
    of: int
    value: bytes


FromWorker = (
    Hello | Ready | Pulse | Entered | Joined | Reformed | Out | Done | Draining | Failed | Exported | Note
    | Evaluated | TaskDone | Concluded | Checkpointed | BadRecords
    | KvSet | KvPart
)  # fmt: skip

# ------------------------------------------------------------------------------------ master to worker


class Welcome(_Message, frozen=True):
    """The answer to every hello that is accepted: somebody is there."""


class NewPlan(_Message, frozen=True):
    """The ring of the next generation. Without `abort` the switch is at a step boundary."""

    plan: Plan
    abort: bool
    reason: str


class AbortRing(_Message, frozen=True):
    """Break the ring of this generation now; a plan follows."""

    generation: int
    reason: str


class KvEntry(_Message, frozen=True):
    """A key that some member set; only members of that generation get it."""

    generation: int
    key: str
    value: bytes


class Stop(_Message, frozen=True):
    """Stop at the next step boundary."""

    reason: str


class Drain(_Message, frozen=True):
    """Leave at a step boundary, as after SIGTERM (the job shrinks)."""


class DoTask(_Message, frozen=True):
    """Evaluate or predict the records [start, stop)."""

    number: int
    attempt: int
    start: int
    stop: int
    version: int
    """The step of the checkpoint to use."""


class Conclude(_Message, frozen=True):
    """All tasks are done: make one result of them."""

    sums: list[float]
    tasks: int
    records: int


class Export(_Message, frozen=True):
    """Write the result."""


class Release(_Message, frozen=True):
    """The job is over: exit 0."""


class Evicted(_Message, frozen=True):
    """This worker is no longer part of the job: exit."""

    reason: str


FromMaster = (
    Welcome | DoTask | Conclude | NewPlan | AbortRing | KvEntry | Stop | Drain | Export | Release | Evicted
)

# ----------------------------------------------------------------------------------- commands to master


class Ask(_Message, frozen=True):
    """Ask for the job's status."""


class Scale(_Message, frozen=True):
    """Change the number of workers."""

    num_workers: int


class StopJob(_Message, frozen=True):
    """Stop the job at a step boundary."""

    reason: str = "asked by the user"


Command = Ask | Scale | StopJob


class WorkerStatus(msgspec.Struct, frozen=True):
    """One worker as the master sees it."""

    worker_id: int
    host: str
    standing: str
    rank: int
    """-1 when it is in no ring."""
    activity: str
    step: int
    pid: int = 0
    draining: bool = False


class EventRecord(msgspec.Struct, frozen=True):
    """Something that happened to the job, in words. `serial` grows by one."""

    serial: int
    wall: float
    kind: str
    text: str


class Tally(msgspec.Struct, frozen=True):
    """What this run of the job did so far."""

    steps: int = 0
    records: int = 0
    trained: float = 0.0
    """Seconds in which a ring stood."""
    pauses: list[float] = []
    """Seconds for which the survivors of each re-form stood still; the slowest of them counts."""
    losses: int = 0
    """Members of a ring that were lost without having been asked to leave."""


class JobStatus(msgspec.Struct, frozen=True):
    """The job as the master sees it."""

    job_name: str
    phase: str
    wanted: int
    minimum: int
    generation: int
    step: int
    total_steps: int
    loss: float
    records_per_second: float
    steps_per_second: float
    waiting_for: str
    elapsed: float
    workers: list[WorkerStatus]
    events: list[EventRecord]
    job_dir: str = ""
    metrics: dict[str, float] = {}
    """Of the last evaluation."""
    metrics_step: int = -1
    reason: str = ""
    """Why the job ended."""
    short: str = ""
    """How many of the wanted workers take part, and why newcomers cannot begin."""
    path: str = ""
    """Where the result was written."""
    flags: list[str] = []
    """Of the job, as workers read them; one started by hand takes from here what it was not told."""
    counts: str = "step"
    """What `step` and `total_steps` count; tasks where work is pulled."""
    position: int = 0
    """Records that were used so far, counted over all epochs and runs."""
    length: Length | None = None
    """Of a training, once a worker opened its data."""
    tally: Tally = Tally()
    audit: str = ""
    """The verdict on a job that is over, where it was given --audit_dir."""


def metrics_line(message: Evaluated) -> str:
    """As people look for it in logs."""
    shown = ", ".join(f"{name!r}: {value:.6g}" for name, value in message.metrics.items())
    return f"Evaluation metrics[step={message.step}]: {{{shown}}}"


_encoder = msgspec.msgpack.Encoder()


def encode(message: object) -> bytes:
    """A name of a file may be no UTF-8, and with it an exception that names it: that part is escaped."""
    try:
        return _encoder.encode(message)
    except UnicodeEncodeError:
        return _encoder.encode(_escaped(msgspec.to_builtins(message, builtin_types=(bytes,))))


def _escaped(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case list():
            return [_escaped(part) for part in value]
        case dict():
            return {_escaped(key): _escaped(part) for key, part in value.items()}
    return value


decode_from_worker = msgspec.msgpack.Decoder(FromWorker).decode
decode_from_master = msgspec.msgpack.Decoder(FromMaster).decode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_status = msgspec.msgpack.Decoder(JobStatus).decode
