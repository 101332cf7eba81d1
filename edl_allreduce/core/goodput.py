"""Where the time of a job went: every second of its wall time is in exactly one bucket.

A worker knows best what it does, so it keeps a ledger: seconds by bucket, which only grow
(`worker/loop/ledger.py`). The ledger rides in its heartbeats. The master's account, this module, takes the
time between two heartbeats and splits it as the ledger grew meanwhile. So the parts add up to the wall time
by construction, whatever the clocks say:

    of wall time       the witness splits it: the first member of the ring that holds the model. Where nobody
                       holds it, the master knows what the job waits for.
    of worker seconds  each worker splits its own life, from launch to end; places that are wanted and that
                       nobody fills are `capacity_missing`.

Seconds after the last heartbeat are not accounted yet, so a report is at most a heartbeat old, or a step
where steps are longer. All of it only grows. docs/goodput.md has the definitions, beside those of others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from edl_allreduce.core.progress import duration


class Bucket(StrEnum):
    """What a second was spent on. Names are those of Google's ML goodput library where they mean the same."""

    STEP = "productive_step"
    """Training: compute, allreduce, update. All the rest is lost."""
    LAUNCH = "worker_launch"
    """Until a worker says hello: a place in the cluster, the image, the start of the process."""
    STARTUP = "program_startup"
    """Imports, the model, the trace of its step, the data: from hello to ready."""
    PREP = "training_prep"
    """A worker's way into its first ring: connections, the state of the others, a first step that takes
    longer."""
    WAITING = "waiting_for_workers"
    """Ready, but there is no plan yet."""
    NOTICE = "reform_notice"
    """From the last step to the moment when a worker knew that the ring is broken."""
    PLAN = "reform_plan"
    """Until the next plan was there."""
    JOIN = "reform_join"
    """Until the ring was connected."""
    SYNC = "reform_sync"
    """Until all had agreed on the state, and had it."""
    FIRST_STEP = "reform_first_step"
    """What the first step of a ring took longer than a usual one."""
    REDONE = "wasted_progress_from_disruption"
    """Steps that were made before: the last holders of the model were lost."""
    RECOVERY = "infrastructure_recovery_from_disruption"
    """The ring is lost, or too small to train: the job waits for workers."""
    EVALUATION = "evaluation"
    CHECKPOINT = "unproductive_checkpoint_save_time"
    """For which a checkpoint held training; the disk works in the background and does not count."""
    INPUT = "data_loading_sync"
    """The step waited for its records."""
    STRAGGLER = "straggler"
    """Waiting in the allreduce for a rank that computed longer."""
    MISSING = "capacity_missing"
    """Only of worker seconds: places that were wanted and that no worker filled."""
    FINISHING = "finishing"
    """From the last step to the end: the last checkpoint, the result."""
    OTHER = "other"
    """Not known: from the last heartbeat of a worker to its end."""


TITLES: Final[Mapping[Bucket, str]] = {
    Bucket.STEP: "productive steps",
    Bucket.LAUNCH: "launch of workers",
    Bucket.STARTUP: "start of programs",
    Bucket.PREP: "first ring",
    Bucket.WAITING: "waiting for workers",
    Bucket.NOTICE: "re-form: notice",
    Bucket.PLAN: "re-form: plan",
    Bucket.JOIN: "re-form: join",
    Bucket.SYNC: "re-form: sync",
    Bucket.FIRST_STEP: "re-form: first step",
    Bucket.REDONE: "work done again",
    Bucket.RECOVERY: "waiting after a loss",
    Bucket.EVALUATION: "evaluation",
    Bucket.CHECKPOINT: "checkpoint stall",
    Bucket.INPUT: "input stall",
    Bucket.STRAGGLER: "stragglers",
    Bucket.MISSING: "capacity missing",
    Bucket.FINISHING: "finishing",
    Bucket.OTHER: "other",
}
"""For people, in the order in which they are shown."""

REFORM: Final = (Bucket.NOTICE, Bucket.PLAN, Bucket.JOIN, Bucket.SYNC, Bucket.FIRST_STEP)
"""One re-form, in order."""

SHOWN_WORKERS: Final = 256
"""Of a report; those that are gone longest are left out of the list first, never out of the sums."""

SHOWN_LOSSES: Final = 3
"""Of a line."""

Seconds = Mapping[str, float]
"""By the name of a bucket; what is missing is 0."""


class ReformCause(StrEnum):
    """Why a ring re-formed, from who was in the one before it."""

    FIRST = "first"
    """There was none before it."""
    LOSS = "loss"
    """A member was lost."""
    DRAIN = "drain"
    """A member was asked to leave, and left in order."""
    GROWTH = "growth"
    """Newcomers joined."""
    RETRY = "retry"
    """The same members once more: the ring before it did not hold."""


def reform_cause(before: tuple[int, ...], after: tuple[int, ...], *, abort: bool) -> ReformCause:
    """From two plans. A ring that loses somebody and takes others in at once re-formed for the loss."""
    if not before:
        return ReformCause.FIRST
    if set(before) - set(after):
        return ReformCause.LOSS if abort else ReformCause.DRAIN
    return ReformCause.GROWTH if set(after) - set(before) else ReformCause.RETRY


# ------------------------------------------------------------------------------------------------- report


@dataclass(frozen=True)
class WorkerGoodput:
    """The life of one worker, from its launch to its end or its last heartbeat."""

    worker_id: int
    lived: float
    seconds: dict[str, float]
    """By the name of a bucket; adds up to `lived`."""
    gone: bool = False

    @property
    def share(self) -> float:
        """Of its life that was productive."""
        return _share(self.seconds, self.lived)


@dataclass(frozen=True)
class GoodputReport:
    """Where the time of a job went so far, in seconds by the name of a bucket (`Bucket`, `TITLES`).

    `seconds` adds up to `wall`, and `worker_seconds` to `worker_wall`: the wanted workers times the wall
    time, and more while there are more than wanted.
    """

    wall: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    worker_wall: float = 0.0
    worker_seconds: dict[str, float] = field(default_factory=dict)
    reforms: dict[str, dict[str, float]] = field(default_factory=dict)
    """What re-forms cost of the wall time: by cause (`ReformCause`), then by bucket (those of `REFORM`)."""
    workers: list[WorkerGoodput] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Goodput: the productive part of the wall time, from 0 to 1."""
        return _share(self.seconds, self.wall)

    @property
    def worker_share(self) -> float:
        """The productive part of the worker seconds that were wanted, from 0 to 1."""
        return _share(self.worker_seconds, self.worker_wall)

    def lost(self) -> list[tuple[Bucket, float]]:
        """What cost wall time, the most expensive first."""
        parts = [(bucket, self.seconds.get(bucket, 0.0)) for bucket in Bucket if bucket is not Bucket.STEP]
        return sorted(((b, s) for b, s in parts if s > 0), key=lambda part: -part[1])


def short(report: GoodputReport) -> GoodputReport:
    """Where room is scarce: without the workers, to the millisecond."""

    def rounded(seconds: Seconds) -> dict[str, float]:
        return {name: round(spent, 3) for name, spent in seconds.items()}

    return GoodputReport(
        round(report.wall, 3),
        rounded(report.seconds),
        round(report.worker_wall, 3),
        rounded(report.worker_seconds),
        {cause: rounded(seconds) for cause, seconds in report.reforms.items()},
    )


def words(report: GoodputReport) -> str:
    """In a line: how much of the time was productive, and what cost most of the rest."""
    if report.wall <= 0:
        return "no time was accounted"
    lost = [f"{TITLES[bucket]} {duration(seconds)}" for bucket, seconds in report.lost()[:SHOWN_LOSSES]]
    of_workers = f", {100 * report.worker_share:.0f} % of worker seconds" if report.worker_wall else ""
    rest = f"; lost: {', '.join(lost)}" if lost else ""
    return f"{100 * report.share:.0f} % of {duration(report.wall)}{of_workers}{rest}"


def _share(seconds: Seconds, whole: float) -> float:
    return min(1.0, seconds.get(Bucket.STEP, 0.0) / whole) if whole > 0 else 0.0


# ------------------------------------------------------------------------------------------------ account


@dataclass(frozen=True)
class _Life:
    began: float
    at: float
    """Accounted until then."""
    seconds: Seconds = field(default_factory=dict)
    ledger: Seconds | None = None
    """As it was last heard; None before the first."""
    uid: str = ""
    """Of its process; empty before it said hello."""
    taken_over: bool = False
    """Its first ledger tells of the time of an earlier master, too: only what comes after it counts."""
    gone: bool = False


@dataclass(frozen=True)
class Account:
    """Values that are replaced. `began` is when the job began."""

    began: float
    at: float
    """The job's wall time is accounted until then."""
    ticked: float
    """Missing places are accounted until then."""
    seconds: Seconds = field(default_factory=dict)
    reforms: Mapping[str, Seconds] = field(default_factory=dict)
    lives: Mapping[int, _Life] = field(default_factory=dict)
    missing: float = 0.0
    buried: Seconds = field(default_factory=dict)
    """Of those that are gone longest."""


@dataclass(frozen=True)
class Witness:
    """How the present time of the job is to be split."""

    worker_id: int
    cause: ReformCause = ReformCause.FIRST
    """Of the ring that it is in or goes to."""
    redoes: bool = False
    """Its steps were made before."""


def begin(now: float) -> Account:
    return Account(now, now, now)


def launched(account: Account, worker_id: int, now: float) -> Account:
    """A worker's life begins; one that came by itself begins when it says hello."""
    known = account.lives.get(worker_id)
    if known is not None and not known.gone:
        return account
    account = _buried(account, [worker_id])  # the number is used again
    return _with_life(account, worker_id, _Life(now, now))


def connected(
    account: Account, worker_id: int, now: float, *, uid: str = "", taken_over: bool = False
) -> Account:
    """It said hello. What was before is its launch, unless it was here and only comes back, or was started by
    an earlier master. A number that is used again begins another life."""
    before = account.lives.get(worker_id)
    if before is not None and (before.gone or (before.uid and before.uid != uid)):
        account = _buried(gone(account, worker_id, now), [worker_id])
    account = launched(account, worker_id, now)
    life = account.lives[worker_id]
    if life.ledger is not None:
        return account
    bucket = Bucket.OTHER if taken_over else Bucket.LAUNCH
    life = replace(_spend(life, {bucket: 1.0}, now, {}), uid=uid, taken_over=taken_over)
    return _with_life(account, worker_id, life)


def heard(
    account: Account, worker_id: int, ledger: Seconds, now: float, witness: Witness | None = None
) -> Account:
    """A heartbeat: the ledger of a worker. `witness`: whose ledger splits the time of the job now, if any."""
    life = account.lives.get(worker_id)
    if life is None or life.gone:
        return account
    if life.taken_over:
        return _with_life(account, worker_id, replace(life, ledger=dict(ledger), taken_over=False))
    known = life.ledger or {}
    grown = {name: max(0.0, spent - known.get(name, 0.0)) for name, spent in ledger.items()}
    if sum(grown.values()) <= 0:  # a step that is under way
        return account
    account = _with_life(account, worker_id, _spend(life, grown, now, ledger))
    if witness is None or witness.worker_id != worker_id:
        return account
    if witness.redoes and Bucket.STEP in grown:
        grown[Bucket.REDONE] = grown.get(Bucket.REDONE, 0.0) + grown.pop(Bucket.STEP)
    return _split(account, grown, now, witness.cause)


def stands_by(account: Account, worker_id: int, ledger: Seconds, now: float) -> Account:
    """A heartbeat of a worker that is kept ready for somebody's place: its life begins when it gets one. It
    is beyond what is wanted, so its time is neither spent well nor lost."""
    life = account.lives.get(worker_id)
    if life is None or life.gone:
        return account
    return _with_life(account, worker_id, replace(life, began=now, at=now, seconds={}, ledger=dict(ledger)))


def waits(account: Account, bucket: Bucket, now: float) -> Account:
    """Nobody trains: the job's time goes into this bucket."""
    return _split(account, {bucket: 1.0}, now, None)


def tick(account: Account, wanted: int, present: int, now: float) -> Account:
    """Time passed with so many workers wanted and launched."""
    passed = max(0.0, now - account.ticked)
    return replace(account, missing=account.missing + passed * max(0, wanted - present), ticked=now)


def works(account: Account, worker_id: int, bucket: Bucket, now: float) -> Account:
    """What a worker does that keeps no ledger: one that pulls tasks."""
    life = account.lives.get(worker_id)
    if life is None or life.gone:
        return account
    return _with_life(account, worker_id, _spend(life, {bucket: 1.0}, now, life.ledger or {}))


def gone(account: Account, worker_id: int, now: float) -> Account:
    """Its life is over; nobody knows what it did after its last heartbeat."""
    life = account.lives.get(worker_id)
    if life is None or life.gone:
        return account
    last = Bucket.LAUNCH if life.ledger is None and not life.seconds else Bucket.OTHER
    account = _with_life(account, worker_id, replace(_spend(life, {last: 1.0}, now, {}), gone=True))
    return _bury(account)


def only(account: Account, known: Collection[int], now: float) -> Account:
    """Whoever is not known any more is gone, whether anybody said so or not."""
    for worker_id, life in account.lives.items():
        if not life.gone and worker_id not in known:
            account = gone(account, worker_id, now)
    return account


def inherited(account: Account, shift: float, living: Collection[int]) -> Account:
    """Of an earlier master, whose clock was `shift` behind. What the living did meanwhile their ledgers will
    tell; the others are gone since they were last heard."""
    lives = {
        i: replace(life, began=life.began + shift, at=life.at + shift, gone=life.gone or i not in living)
        for i, life in account.lives.items()
    }
    moved = {name: getattr(account, name) + shift for name in ("began", "at", "ticked")}
    return replace(account, lives=lives, **moved)


def end(account: Account, now: float) -> Account:
    """The job is over: what was not heard of yet belongs to its end."""
    account = waits(account, Bucket.FINISHING, now)
    for worker_id in account.lives:
        account = works(account, worker_id, Bucket.FINISHING, now)
    return account


def _bury(account: Account) -> Account:
    """A job that loses workers for weeks does not keep each of them."""
    dead = sorted(i for i, life in account.lives.items() if life.gone)
    return _buried(account, dead[: max(0, len(dead) - SHOWN_WORKERS)])


def at_most(account: Account, lives: int) -> Account:
    """With so many lives, where room is scarce; the others stay in the sums. First go those that are gone,
    then the last that came. Of one that lives on only the time until its next hello is not known then."""
    dead = sorted(i for i, life in account.lives.items() if life.gone)
    living = sorted((i for i, life in account.lives.items() if not life.gone), reverse=True)
    return _buried(account, set([*dead, *living][: max(0, len(account.lives) - lives)]))


def _buried(account: Account, dead: Collection[int]) -> Account:
    """Their lives stay in the sums only."""
    buried = account.buried
    for worker_id in dead:
        if worker_id in account.lives:
            buried = _added(buried, account.lives[worker_id].seconds)
    lives = {i: life for i, life in account.lives.items() if i not in dead}
    return replace(account, lives=lives, buried=buried)


def report(account: Account) -> GoodputReport:
    """The account as data."""
    shown = sorted(account.lives.items())[-SHOWN_WORKERS:]
    together: Seconds = account.buried
    for life in account.lives.values():
        together = _added(together, life.seconds)
    if account.missing > 0:
        together = _added(together, {Bucket.MISSING: account.missing})
    return GoodputReport(
        wall=account.at - account.began,
        seconds=_plain(account.seconds),
        worker_wall=sum(together.values()),
        worker_seconds=_plain(together),
        reforms={str(cause): _plain(seconds) for cause, seconds in account.reforms.items()},
        workers=[
            WorkerGoodput(i, life.at - life.began, _plain(life.seconds), life.gone) for i, life in shown
        ],
    )


# ------------------------------------------------------------------------------------------------ helpers


def _with_life(account: Account, worker_id: int, life: _Life) -> Account:
    return replace(account, lives={**account.lives, worker_id: life})


def _spend(life: _Life, parts: Seconds, now: float, ledger: Seconds) -> _Life:
    """The time since it was last accounted, split in proportion."""
    spent = _scaled(parts, now - life.at)
    return replace(life, at=max(now, life.at), seconds=_added(life.seconds, spent), ledger=ledger or None)


def _split(account: Account, parts: Seconds, now: float, cause: ReformCause | None) -> Account:
    spent = _scaled(parts, now - account.at)
    reforms, pause = account.reforms, {str(b): spent[b] for b in REFORM if spent.get(b)}
    if cause is not None and pause:
        reforms = {**reforms, cause: _added(reforms.get(cause, {}), pause)}
    return replace(account, at=max(now, account.at), seconds=_added(account.seconds, spent), reforms=reforms)


def _scaled(parts: Seconds, whole: float) -> dict[str, float]:
    total = sum(parts.values())
    if whole <= 0 or total <= 0:
        return {}
    return {name: whole * (part / total) for name, part in parts.items()}


def _added(some: Seconds, more: Seconds) -> dict[str, float]:
    added = dict(some)
    for name, seconds in more.items():
        added[name] = added.get(name, 0.0) + seconds
    return added


def _plain(seconds: Seconds) -> dict[str, float]:
    """By name, in the order of the buckets; ledgers of other versions may know more."""
    known = [bucket.value for bucket in TITLES]
    names = sorted(seconds, key=lambda name: known.index(str(name)) if str(name) in known else len(known))
    return {str(name): seconds[name] for name in names if seconds[name] > 0}
