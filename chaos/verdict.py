"""What is wrong with a run, from the evidence alone: pure, so that planted errors show what it catches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from chaos import replay
from chaos.data import RECORDS, Array
from chaos.diaries import Diary, Harmed, Ring, history
from chaos.faults import Case, Fault, Kind

CLOSE = 1e-9
"""Weights are float64; sums in another order differ by some 1e-15."""
BAGGAGE = {"descriptors": (1.3, 24.0), "threads": (1.3, 16.0), "megabytes": (1.25, 96.0)}
"""How much larger a process may become: by this factor and by this amount."""
FULL_DISK_FELT_SECONDS = 60.0
"""After there is room again: a worker that could not begin is tried again slowly."""
OLD_ENOUGH = 20
"""Samples of a process before growth means anything."""


@dataclass(frozen=True)
class Sample:
    """How large a process was at some time."""

    pid: int
    descriptors: int
    threads: int
    megabytes: float


@dataclass
class Evidence:
    """What was left of a run, and what was seen of it meanwhile."""

    code: int | None
    """How the last master ended; None when it had to be ended."""
    reason: str = ""
    """Its last words."""
    diaries: list[Diary] = field(default_factory=list)
    weights: list[Array] | None = None
    processes: list[str] = field(default_factory=list)
    """That still run."""
    ports: list[int] = field(default_factory=list)
    """That still listen."""
    files: list[str] = field(default_factory=list)
    """Left over that are nobody's result."""
    samples: list[Sample] = field(default_factory=list)
    sightings: list[tuple[int, str, Ring]] = field(default_factory=list)
    """(look, diary, ring): in which ring a worker was seen to apply an update, look after look."""
    harmed: Harmed = field(default_factory=dict)
    blame: list[tuple[float, str]] = field(default_factory=list)
    """When the job counted the end of a worker as its own fault, in its own words."""
    excused: list[tuple[float, float]] = field(default_factory=list)
    """From when to when a fault was felt that nobody can tell from one of the job's own."""
    crashes: list[str] = field(default_factory=list)
    """Workers that ended by themselves in a way that no fault explains."""
    hang: str = ""
    undisturbed: list[list[int]] = field(default_factory=list)
    """The records of each update of a job to which nothing happens."""


@dataclass(frozen=True)
class Verdict:
    """Nothing in `problems`: every promise was kept."""

    problems: tuple[str, ...]
    steps: int = 0
    rings: int = 0
    runs: int = 0
    made_again: int = 0
    apart: float = 0.0


def judge(case: Case, evidence: Evidence) -> Verdict:
    """Every promise against what was seen."""
    problems = []
    if evidence.hang:
        problems.append(f"it hangs: {evidence.hang}")
    elif evidence.code != 0:
        problems.append(f"the job ended with {evidence.code}: {evidence.reason}")
    told = history(evidence.diaries, RECORDS, case.shape.steps, evidence.harmed)
    problems += told.problems[:10]
    if case.shape.careful and told.made_again > told.alone:
        lost = told.made_again - told.alone
        problems.append(f"{lost} updates were lost, although one who had the model was always spared")
    other = [
        n for n, pair in enumerate(zip(told.batches, evidence.undisturbed, strict=False)) if _differ(*pair)
    ]
    if other:
        problems.append(f"{len(other)} updates, from {other[0]} on, are of other records than without faults")
    apart = 0.0
    if evidence.code == 0 and not told.problems:
        apart = float("inf")
        if evidence.weights is not None:
            apart = replay.distance(evidence.weights, replay.train(told.batches))
        if not apart <= CLOSE:
            problems.append(f"the model is {apart:.3g} away from that of an undisturbed job")
    problems += two_rings(evidence.sightings)
    for at, words in evidence.blame:
        if not any(first <= at <= last for first, last in evidence.excused):
            problems.append(f"a fault from outside is held against the job: {words}")
    problems += evidence.crashes
    problems += [f"still runs: {process}" for process in evidence.processes]
    problems += [f"port {port} is still open" for port in evidence.ports]
    problems += [f"left behind: {path}" for path in evidence.files]
    problems += growth(evidence.samples)
    return Verdict(tuple(problems), len(told.batches), told.rings, told.runs, told.made_again, apart)


def excuse(fault: Fault, at: float) -> list[tuple[float, float]]:
    """How long a fault that was done is felt as if it were the job's own; most never are."""
    if fault.kind is Kind.NO_MEMORY:
        return [(at, float("inf"))]  # who is told no may go on for long before it asks
    if fault.kind is Kind.FULL_DISK:
        return [(at, at + fault.seconds + FULL_DISK_FELT_SECONDS)]
    return []


def _differ(one: list[int], other: list[int]) -> bool:
    return sorted(one) != sorted(other)


def two_rings(sightings: Sequence[tuple[int, str, Ring]]) -> list[str]:
    """Whoever is seen to train in an older ring, looks after a newer one was seen to train, is a second ring.

    A worker that was frozen between a step's sum and its update may apply that one update when it wakes up;
    the second one is one too many. What is seen in the very next look may have been written before.
    """
    newest: Ring | None = None
    since = 0
    late: dict[str, int] = {}
    found = []
    for look, name, ring in sightings:
        if newest is None or ring > newest:
            newest, since = ring, look
        elif ring < newest and look > since + 1:
            late[name] = late.get(name, 0) + 1
            if late[name] == 2:
                found.append(f"two rings at once: {name} trains in {ring} while {newest} trains")
    return found


def growth(samples: Sequence[Sample]) -> list[str]:
    """Processes that became larger and larger, by the medians of their first and last quarter."""
    by_pid: dict[int, list[Sample]] = {}
    for sample in samples:
        by_pid.setdefault(sample.pid, []).append(sample)
    found = []
    for pid, own in by_pid.items():
        if len(own) < OLD_ENOUGH:
            continue
        quarter = len(own) // 4
        for name, (factor, amount) in BAGGAGE.items():
            first = _median([float(getattr(sample, name)) for sample in own[quarter : 2 * quarter]])
            last = _median([float(getattr(sample, name)) for sample in own[-quarter:]])
            if last > first * factor and last > first + amount:
                found.append(f"process {pid} grew from {first:.0f} to {last:.0f} {name}")
    return found


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
