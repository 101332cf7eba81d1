"""What can happen to a job: a closed set of kinds, each with its facts and a sentence about them.

The facts are data (`event_data`), so nothing has to be read back out of a sentence. `kind` is the word that
people see and filter by; two kinds of facts may share one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from edl_allreduce.core import goodput
from edl_allreduce.core.protocol import NoteKind

NOBODY: Final = -1
"""In the place of a worker's number: it is about the whole job."""

ANOMALY: Final = "anomaly"


# -------------------------------------------------------------------------------- the life of one worker


@dataclass(frozen=True)
class WorkerLaunched:
    """`replaces`: why the place that it takes became empty (`Cause`); empty where nobody had it before."""

    kind: ClassVar[str] = "launch"
    worker_id: int
    replaces: str = ""

    def text(self) -> str:
        return f"worker {self.worker_id} starts"


@dataclass(frozen=True)
class WorkerConnected:
    kind: ClassVar[str] = "hello"
    worker_id: int
    host: str

    def text(self) -> str:
        return f"worker {self.worker_id} connected from {self.host}"


@dataclass(frozen=True)
class WorkerReady:
    kind: ClassVar[str] = "ready"
    worker_id: int
    standby: bool = False
    """There are enough without it: it takes the place of the next one that is lost."""

    def text(self) -> str:
        return f"worker {self.worker_id} is ready{' and stands by' if self.standby else ''}"


@dataclass(frozen=True)
class WorkerEvicted:
    """`cause` is the one that the machine had in mind: stuck, silent, invalid."""

    kind: ClassVar[str] = "evict"
    worker_id: int
    cause: str
    reason: str

    def text(self) -> str:
        return f"worker {self.worker_id} {self.reason}"


@dataclass(frozen=True)
class WorkerExited:
    """`how`: exit code, signal, the pod's own words."""

    kind: ClassVar[str] = "exit"
    worker_id: int
    cause: str
    how: str

    def text(self) -> str:
        return f"worker {self.worker_id} {self.how}"


@dataclass(frozen=True)
class WorkerFailed:
    """Its code raised; `summary` is the exception in one line."""

    kind: ClassVar[str] = "failure"
    worker_id: int
    summary: str

    def text(self) -> str:
        return f"worker {self.worker_id}: {self.summary}"


@dataclass(frozen=True)
class WorkerDrains:
    kind: ClassVar[str] = "drain"
    worker_id: int

    def text(self) -> str:
        return f"worker {self.worker_id} drains"


@dataclass(frozen=True)
class DrainWaits:
    """Whoever asked it to leave may wonder why it is still there."""

    kind: ClassVar[str] = "drain"
    worker_id: int
    waiting_for: str

    def text(self) -> str:
        return self.waiting_for


@dataclass(frozen=True)
class WorkerSlow:
    """For long: its own part of a step takes `seconds`, that of the others `usual`."""

    kind: ClassVar[str] = "straggler"
    worker_id: int
    seconds: float
    usual: float
    replaced: bool

    def text(self) -> str:
        times = self.seconds / self.usual if self.usual else 1.0
        end = "; it drains and is replaced (--replace_stragglers)" if self.replaced else ""
        return (
            f"worker {self.worker_id} is slow: its part of a step takes {1000 * self.seconds:.0f} ms, "
            f"{times:.1f} times as long as that of the others{end}"
        )


@dataclass(frozen=True)
class WorkerQuickAgain:
    kind: ClassVar[str] = "straggler"
    worker_id: int

    def text(self) -> str:
        return f"worker {self.worker_id} is as quick as the others again"


@dataclass(frozen=True)
class TrainingResumed:
    """`how`: in the words of the worker that read the checkpoint."""

    kind: ClassVar[str] = NoteKind.RESUME
    worker_id: int
    how: str

    def text(self) -> str:
        return f"worker {self.worker_id}: {self.how}"


# ----------------------------------------------------------------------------------------------- the ring


@dataclass(frozen=True)
class RingPlanned:
    """`workers` in rank order. `abort`: the ring before it breaks at once, not at a step boundary."""

    kind: ClassVar[str] = "plan"
    generation: int
    workers: tuple[int, ...]
    abort: bool
    reason: str
    cause: str = ""
    """`goodput.ReformCause`: for people who count."""

    def text(self) -> str:
        ids = ", ".join(map(str, self.workers))
        return f"generation {self.generation}: workers {ids}, because {self.reason}"


@dataclass(frozen=True)
class RingAborted:
    """`workers`: those who were told to break it."""

    kind: ClassVar[str] = "abort"
    generation: int
    workers: tuple[int, ...]
    reason: str

    def text(self) -> str:
        return f"generation {self.generation}: {self.reason}"


@dataclass(frozen=True)
class RingReformed:
    """Where a survivor's pause went, in seconds."""

    kind: ClassVar[str] = "re-form"
    worker_id: int
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

    def text(self) -> str:
        where = f"worker {self.worker_id} goes on in generation {self.generation}"
        return f"{where} after {self.pause:.3f} s"


@dataclass(frozen=True)
class StepsSetBack:
    """The last who held the model are lost: steps that were made have to be made again."""

    kind: ClassVar[str] = "set-back"
    generation: int
    reached: int
    step: int

    def text(self) -> str:
        lost = self.reached - self.step
        where = f"training goes on from step {self.step} instead of {self.reached}"
        return f"the model was lost with its last holders: {where}, {lost} steps are made again"


# --------------------------------------------------------------------------------------- keeping workers


@dataclass(frozen=True)
class RelaunchDelayed:
    """The place of `worker_id` stays empty for `delay` seconds."""

    kind: ClassVar[str] = "relaunch"
    worker_id: int
    delay: float
    reason: str

    def text(self) -> str:
        return f"in {self.delay:.0f} s: {self.reason}"


@dataclass(frozen=True)
class WorkerNotReplaced:
    """Its place stays empty, since the user wants it so."""

    kind: ClassVar[str] = "relaunch"
    worker_id: int
    reason: str

    def text(self) -> str:
        return self.reason


@dataclass(frozen=True)
class WorkersShort:
    """Newcomers cannot begin; the others train on."""

    kind: ClassVar[str] = "short"
    worker_id: int
    reason: str
    circumstances: str
    delay: float

    def text(self) -> str:
        again = f"next try in {self.delay:.0f} s, then more and more seldom"
        return f"worker {self.worker_id} {self.reason} ({self.circumstances}; {again})"


@dataclass(frozen=True)
class NewcomersBegin:
    kind: ClassVar[str] = "newcomers"
    worker_id: int

    def text(self) -> str:
        return f"worker {self.worker_id} is as it should be: newcomers can begin again"


# ---------------------------------------------------------------------------------- what workers produce


@dataclass(frozen=True)
class CheckpointWritten:
    kind: ClassVar[str] = "checkpoint"
    worker_id: int
    step: int
    path: str
    seconds: float = 0.0
    """For which it was written, in the background."""
    fingerprint: str = ""
    """Of the weights, where the job is reproducible."""

    def text(self) -> str:
        which = f", fingerprint {self.fingerprint}" if self.fingerprint else ""
        return f"worker {self.worker_id}: step {self.step} is in {self.path}{which}"


@dataclass(frozen=True)
class CheckpointMissing:
    kind: ClassVar[str] = NoteKind.WARNING
    worker_id: int
    step: int
    path: str
    error: str

    def text(self) -> str:
        what = f"the checkpoint of step {self.step} could NOT be written to {self.path}"
        return f"worker {self.worker_id}: {what}: {self.error}"


@dataclass(frozen=True)
class ModelEvaluated:
    kind: ClassVar[str] = "evaluation"
    step: int
    metrics: Mapping[str, float]

    def text(self) -> str:
        """As people look for it in logs."""
        shown = ", ".join(f"{name!r}: {value:.6g}" for name, value in self.metrics.items())
        return f"Evaluation metrics[step={self.step}]: {{{shown}}}"


@dataclass(frozen=True)
class RecordsLeftOut:
    """Records that cannot be read: `data` says of which data, `summary` which and how many so far."""

    kind: ClassVar[str] = NoteKind.WARNING
    worker_id: int
    data: str
    records: tuple[int, ...]
    summary: str

    def text(self) -> str:
        return self.summary


@dataclass(frozen=True)
class TasksMade:
    """Of an evaluation or a prediction; `step` is that of the model."""

    kind: ClassVar[str] = "tasks"
    records: int
    tasks: int
    step: int

    def text(self) -> str:
        return f"{self.records} records in {self.tasks} tasks, model of step {self.step}"


@dataclass(frozen=True)
class TasksGivenAgain:
    """`worker_id` had them."""

    kind: ClassVar[str] = "redo"
    worker_id: int
    tasks: int

    def text(self) -> str:
        return f"{self.tasks} task of a lost worker is given out again"


@dataclass(frozen=True)
class Noted:
    """In the words of a worker, of the cluster, or of the master's shell."""

    kind: NoteKind
    words: str
    worker_id: int = NOBODY

    def text(self) -> str:
        return self.words if self.worker_id == NOBODY else f"worker {self.worker_id}: {self.words}"


# ------------------------------------------------------------------------------------------------ the job


@dataclass(frozen=True)
class WeightsDoubted:
    """Workers contradict each other and nobody could tell who is right, or now somebody can: in the master's
    words, which no worker's talk must drown."""

    kind: ClassVar[str] = NoteKind.WARNING
    words: str

    def text(self) -> str:
        return self.words


@dataclass(frozen=True)
class MasterReturned:
    """Another master goes on with the job; no worker of the earlier one is left, numbers may begin anew."""

    kind: ClassVar[str] = "restart"

    def text(self) -> str:
        return "another master goes on with this job; the workers of the earlier one are gone"


@dataclass(frozen=True)
class JobWaits:
    kind: ClassVar[str] = "waiting"
    waiting_for: str

    def text(self) -> str:
        return self.waiting_for


@dataclass(frozen=True)
class JobScaled:
    kind: ClassVar[str] = "scale"
    before: int
    count: int

    def text(self) -> str:
        return f"from {self.before} to {self.count} workers"


@dataclass(frozen=True)
class JobStops:
    kind: ClassVar[str] = "stop"
    reason: str

    def text(self) -> str:
        return f"stopping at the next step boundary: {self.reason}"


@dataclass(frozen=True)
class TrainingFinished:
    kind: ClassVar[str] = "finish"
    step: int
    stopped: bool

    def text(self) -> str:
        return f"training {'stopped' if self.stopped else 'is complete'} after {self.step} steps"


@dataclass(frozen=True)
class TimeAccounted:
    """Where the time of a job went that ends now: see `core.goodput`."""

    kind: ClassVar[str] = "goodput"
    wall: float
    seconds: Mapping[str, float] = field(hash=False)
    worker_wall: float
    worker_seconds: Mapping[str, float] = field(hash=False)

    def text(self) -> str:
        report = goodput.GoodputReport(
            self.wall, dict(self.seconds), self.worker_wall, dict(self.worker_seconds)
        )
        return goodput.words(report)


@dataclass(frozen=True)
class JobEnded:
    """`phase` is the last one."""

    kind: ClassVar[str] = "end"
    phase: str
    reason: str

    def text(self) -> str:
        return f"{self.phase}: {self.reason}"


@dataclass(frozen=True)
class Anomaly:
    """Something that cannot happen in this state did; the machine went on. A reason to report a bug."""

    kind: ClassVar[str] = ANOMALY
    what: str
    worker_id: int = NOBODY

    def text(self) -> str:
        who = f" (worker {self.worker_id})" if self.worker_id != NOBODY else ""
        return f"{self.what}{who}; this should not happen, please report it"


Event = (
    WorkerLaunched | WorkerConnected | WorkerReady | WorkerEvicted | WorkerExited | WorkerFailed
    | WorkerDrains | DrainWaits | WorkerSlow | WorkerQuickAgain | TrainingResumed
    | RingPlanned | RingAborted | RingReformed | StepsSetBack
    | RelaunchDelayed | WorkerNotReplaced | WorkersShort | NewcomersBegin
    | CheckpointWritten | CheckpointMissing | ModelEvaluated | RecordsLeftOut
    | TasksMade | TasksGivenAgain | Noted | WeightsDoubted | MasterReturned
    | JobWaits | JobScaled | JobStops | TrainingFinished | TimeAccounted | JobEnded | Anomaly
)  # fmt: skip


def workers_of(event: Event) -> frozenset[int]:
    """The workers that this event is about; empty when it is about the whole job."""
    match event:
        case RingPlanned(workers=workers) | RingAborted(workers=workers):
            return frozenset(workers)
    worker_id = getattr(event, "worker_id", NOBODY)
    return frozenset() if worker_id == NOBODY else frozenset({worker_id})
