"""A job as its master sees it: what commands, tables and pages show."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from edl_allreduce.core.goodput import GoodputReport
from edl_allreduce.core.progress import Length
from edl_allreduce.core.protocol import Evaluated

STANDBY = "standby"
"""The standing of a worker that is ready and waits for somebody's place."""


@dataclass(frozen=True)
class WorkerStatus:
    """One worker as the master sees it."""

    worker_id: int
    host: str
    standing: str
    rank: int
    """-1 when it is in no ring."""
    activity: str
    step: int
    pid: int = 0
    """Where it is a process of the master's machine."""
    draining: bool = False
    name: str = ""
    """What the cluster calls it: the name of its pod."""
    compute_seconds: float = 0.0
    """Median of the recent steps: its own part of one, before it meets the others. 0: not known."""
    best_rank_score: float = 1.0
    """How quick it is beside the quickest member of its ring: 1 as quick, 0.5 takes twice as long."""
    own_best_score: float = 1.0
    """How quick it is beside its own best time."""
    straggler: bool = False
    """It was slow for so long that an event names it."""
    node: str = ""
    """The machine that it runs on, where the cluster has several."""


@dataclass(frozen=True)
class EventRecord:
    """Something that happened to the job, in words and as data. `serial` grows by one."""

    serial: int
    wall: float
    kind: str
    text: str
    event: dict[str, Any] = field(default_factory=dict)
    """The facts; `core.event_data.from_data` makes the event of them again."""


@dataclass(frozen=True)
class WorkerFacts:
    """What is known about one worker where it runs, for people and scripts."""

    pid: int = 0
    """Of its process, where that is one of this machine."""
    name: str = ""
    """What the cluster calls it: the name of its pod."""
    condition: str = ""
    """Why it does not run yet, in the cluster's own words; empty when there is nothing to say."""
    node: str = ""
    """The machine that it runs on, where the cluster has several."""


@dataclass(frozen=True)
class CheckpointStatus:
    """The last checkpoint that was written, and when."""

    step: int
    path: str
    wall: float
    fingerprint: str = ""
    """Of the weights, where the job is reproducible."""


@dataclass(frozen=True)
class Tally:
    """What this run of the job did so far."""

    steps: int = 0
    records: int = 0
    trained: float = 0.0
    """Seconds in which a ring stood."""
    pauses: list[float] = field(default_factory=list)
    """Seconds for which the survivors of each re-form stood still; the slowest of them counts."""
    losses: int = 0
    """Members of a ring that were lost without having been asked to leave."""
    set_back: int = 0
    """Steps that had to be made again because the last holders of the model were lost."""


@dataclass(frozen=True)
class JobStatus:
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
    metrics: dict[str, float] = field(default_factory=dict)
    """Of the last evaluation."""
    metrics_step: int = -1
    reason: str = ""
    """Why the job ended."""
    short: str = ""
    """How many of the wanted workers take part, and why newcomers cannot begin."""
    path: str = ""
    """Where the result was written."""
    flags: list[str] = field(default_factory=list)
    """Of the job, as workers read them; one started by hand takes from here what it was not told."""
    counts: str = "step"
    """What `step` and `total_steps` count; tasks where work is pulled."""
    position: int = 0
    """Records that were used so far, counted over all epochs and runs."""
    length: Length | None = None
    """Of a training, once a worker opened its data."""
    tally: Tally = Tally()
    losses: list[float] = field(default_factory=list)
    """Of the steps so far, in few points."""
    goodput: GoodputReport = field(default_factory=GoodputReport)
    """Where the time went, since this master took the job over."""
    checkpoint: CheckpointStatus | None = None
    fingerprint: str = ""
    """Of the weights at the end of a reproducible training: SHA-256."""
    audit: str = ""
    """The verdict on a job that is over, where it was given --audit_dir."""
    changing: bool = False
    """The ring of the newest plan has not begun: until then steps are those of the ring before it."""

    def __repr__(self) -> str:
        """Short, for notebooks."""
        parts = [f"{self.counts} {self.step} of {self.total_steps or '?'}"]
        if self.loss == self.loss:
            parts.append(f"loss {self.loss:.6g}")
        parts += [f"model {self.path}"] if self.path else []
        parts += [repr(self.reason)[:200]] if self.reason else []
        return f"JobStatus({self.job_name!r}, {self.phase}, {', '.join(parts)})"


def metrics_line(message: Evaluated) -> str:
    """As people look for it in logs."""
    shown = ", ".join(f"{name!r}: {value:.6g}" for name, value in message.metrics.items())
    return f"Evaluation metrics[step={message.step}]: {{{shown}}}"
