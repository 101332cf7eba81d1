"""What a master knows of its job: values that are replaced, never changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edl_allreduce.core import goodput, health, protocol
from edl_allreduce.core.account import Account
from edl_allreduce.core.causes import Cause
from edl_allreduce.core.course import Course
from edl_allreduce.core.deadlines import Deadlines
from edl_allreduce.core.differing import Doubt
from edl_allreduce.core.digest import Curve
from edl_allreduce.core.goodput import ReformCause
from edl_allreduce.core.job.lifecycle import Phase
from edl_allreduce.core.membership import types as membership
from edl_allreduce.core.progress import Length, Place, Stopwatch
from edl_allreduce.core.straggler import Watch
from edl_allreduce.core.tasks import TaskQueue


@dataclass(frozen=True)
class JobOptions:
    """What the master must know of the job."""

    job_name: str
    num_workers: int
    min_workers: int
    cool_down: float
    deadlines: Deadlines
    crash_budget: int
    recover_until: float = 0.0
    master_grace: float = 60.0
    max_bad_records: int = 0
    task_records: int = 0
    """Records of a task; 0 for a training, whose workers form a ring."""
    replace_stragglers: float = 0.0
    """A worker that takes so many times as long as the others is replaced; 0: none."""
    relaunch: bool = True
    """Whether a lost worker is replaced."""
    verify_fingerprint: str = ""
    """Which the weights must have at the end; empty: any."""
    standby: int = 0
    """Workers beyond the wanted ones that are kept ready for the place of the next one that is lost."""
    head_start: float = 0.0
    """Seconds for survivors to re-form before a replacement starts, where it would take their cores."""
    reproducible: bool = False
    """All workers hold the same bits, so that they can be compared."""


# ---------------------------------------------------------------------------------------------- workers


@dataclass(frozen=True)
class Peer:
    """A connected worker."""

    hello: protocol.Hello
    link: int
    pulse: health.Pulse
    last: protocol.Pulse | None = None
    course: Course | None = None
    """What it would train, when it is ready and that is what the rest train."""
    joined_at: int | None = None
    """The step at which it joined its ring."""

    @property
    def worker_id(self) -> int:
        return self.hello.seat.worker_id

    @property
    def held_model(self) -> bool:
        """Whether it was ever in a ring that agreed on the model."""
        return self.hello.has_state or self.joined_at is not None


@dataclass(frozen=True)
class Slot:
    """A worker that this master started, or took over from an earlier one."""

    launched: float
    accepted: bool = False
    """It was ready, and nothing was wrong with it as a newcomer."""
    proved: bool = False
    """It made a step in a ring with the others, or a task."""
    draining: bool = False
    evicted: Cause | None = None
    kill_at: float | None = None
    """It was asked to end; when it is killed if it does not."""
    uid: str = ""
    refusal: str = ""
    """Why it may not take part."""
    failed: protocol.Failed | None = None
    """What its code raised, in its own words."""


@dataclass(frozen=True)
class Allowance:
    """How many letters of reports a worker had left, and when (`talk`)."""

    left: float
    at: float


@dataclass(frozen=True)
class Keeping:
    """How it went with starting workers so far."""

    next_id: int = 0
    launch_after: float = 0.0
    launches_left: int = 0
    """Where a lost worker is not replaced: how many may still be started."""
    failures: int = 0
    refusals: int = 0
    """Newcomers in a row that could not begin."""
    refused_at: float = 0.0
    short: str = ""
    """Why there are fewer workers than wanted, when newcomers cannot begin."""
    told_short: frozenset[str] = frozenset()
    repeats: Mapping[str, int] = field(default_factory=dict)
    """How often user code failed in the same way at the same step."""
    vacant: tuple[Cause, ...] = ()
    """Why places are empty, the oldest first."""


# ------------------------------------------------------------------------------------------------- work


@dataclass(frozen=True)
class Ring:
    """Training: the membership machine says who trains with whom."""

    members: membership.State
    reasons: Mapping[int, str] = field(default_factory=dict)
    """Why each generation was planned."""
    seated: tuple[int, ...] = ()
    """The workers of the last plan, in rank order."""
    causes: Mapping[int, ReformCause] = field(default_factory=dict)
    """The same as the reasons, for people who count."""


@dataclass(frozen=True)
class Queue:
    """Evaluation and prediction: workers pull tasks and need no ring."""

    tasks: TaskQueue | None = None
    """None before a worker opened the data."""
    version: int = -1
    """The step of the checkpoint: the first worker's choice holds for all."""
    records: int = 0
    sums: tuple[float, ...] = ()
    waiting: frozenset[str] = frozenset()
    """Ready workers that have no task."""
    concluder: str = ""
    asked: frozenset[str] = frozenset()
    """All who were ever asked to conclude: what one of them said may arrive when another is asked already."""
    away: Mapping[str, float] = field(default_factory=dict)
    """Since when workers have no connection."""


# ----------------------------------------------------------------------------------------------- course


@dataclass(frozen=True)
class Progress:
    """How far the job is, and what it cost."""

    place: Place = field(default_factory=Place)
    first: Place | None = None
    """Where this run began."""
    length: Length | None = None
    total_steps: int = 0
    """Of a job without a length: tasks."""
    trained: Stopwatch = field(default_factory=Stopwatch)
    losses: int = 0
    """Members of a ring that were lost without having been asked to leave."""
    reached: int = 0
    """The furthest step that is known of the rings so far."""
    joined: int = 0
    """The newest generation that somebody joined."""
    set_back: int = 0
    """Steps that had to be made again because the model was lost."""
    loss_curve: Curve = field(default_factory=Curve)
    redo_until: int = 0
    """Steps up to this one were made before."""
    reforms: Mapping[int, protocol.Reformed] = field(default_factory=dict)
    """By generation: what the slowest survivor said, since the others waited for it."""
    earlier_pauses: tuple[float, ...] = ()
    """Of re-forms under earlier masters of the job."""
    metrics: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """By the step of the evaluation."""


@dataclass(frozen=True)
class Checkpoint:
    """The last one that was written, and when."""

    step: int
    path: str
    at: float
    fingerprint: str = ""


@dataclass(frozen=True)
class Waiting:
    """What the job waits for, since when, and what people were told of it."""

    text: str = ""
    since: float = 0.0
    told: str = ""


@dataclass(frozen=True)
class Ending:
    """From the last step to the result."""

    finishers: tuple[str, ...] = ()
    """Workers that hold the final model and were not asked yet to write it."""
    exporter: str = ""
    asked: frozenset[str] = frozenset()
    """All who were ever asked to write it: what the last of them said may arrive after news of their end."""
    exporter_left: float = 0.0
    """When the worker that writes the result was last seen to lose its connection."""
    path: str = ""
    over_by: float = 0.0
    """Released workers may take so long to leave."""
    over: bool = False


@dataclass(frozen=True)
class JobState:
    """Everything. Only `machine.handle` makes a new one."""

    options: JobOptions
    work: Ring | Queue
    wanted: int
    began: float
    phase: Phase = Phase.STARTING
    reason: str = ""
    """Why the job ended."""
    stopping: str = ""
    """Why it is to stop at a step boundary; empty while it is not."""
    failing: str = ""
    """Why it will have failed as soon as the log of the worker to blame is read."""
    peers: Mapping[str, Peer] = field(default_factory=dict)
    """Connected workers by uid."""
    slots: Mapping[int, Slot] = field(default_factory=dict)
    """Workers of the cluster by number, connected or not."""
    ids: Mapping[str, int] = field(default_factory=dict)
    """The numbers of all workers that were ever heard of, by uid."""
    gone: frozenset[str] = frozenset()
    """Uids that were lost or evicted; they do not come back."""
    course: Course | None = None
    """What all train, once somebody was ready."""
    keeping: Keeping = Keeping()
    progress: Progress = Progress()
    stragglers: Watch = field(default_factory=Watch)
    """Who is slow."""
    goodput: goodput.Account = field(default_factory=lambda: goodput.begin(0.0))
    """Where the time went."""
    account: Account = field(default_factory=Account)
    """What workers warned of; several of them see the same files."""
    checkpoint: Checkpoint | None = None
    doubt: Doubt | None = None
    """The last time that workers held different weights without a majority."""
    reported: Mapping[tuple[int, str], protocol.FromWorker] = field(default_factory=dict)
    """By worker and kind: the last reports of which each is told once."""
    told_once: frozenset[tuple[str, str]] = frozenset()
    talk: Mapping[int, Allowance] = field(default_factory=dict)
    """By worker: how much it may still have people told."""
    waiting: Waiting = Waiting()
    ending: Ending = Ending()
    deaf: bool = False
    """Nobody was heard at the last tick."""
    ticked: float | None = None

    @property
    def launched(self) -> int:
        """Workers that the master keeps running: those that are wanted, and those that stand by."""
        return self.wanted + self.options.standby


def begin(options: JobOptions, now: float) -> JobState:
    """A job of which nothing is known yet."""
    work: Ring | Queue = Queue()
    if not options.task_records:
        wishes = membership.Options(
            wanted=options.num_workers,
            minimum=options.min_workers,
            cool_down=options.cool_down,
            deadlines=options.deadlines,
            recover_until=options.recover_until,
            master_grace=options.master_grace,
            standby=options.standby,
        )
        work = Ring(membership.State(wishes))
    return JobState(
        options,
        work,
        wanted=options.num_workers,
        began=now,
        account=Account(options.max_bad_records, expected=options.verify_fingerprint),
        goodput=goodput.begin(now),
        keeping=Keeping(launches_left=options.num_workers + options.standby),
    )


@dataclass(frozen=True)
class Result:
    """How the job ended."""

    phase: Phase
    reason: str
    step: int
    path: str
    reforms: list[protocol.Reformed]
    """The slowest survivor of each generation."""
    reasons: dict[int, str]
    """Why each generation was planned."""
