"""How the cluster is shared: the rule, and what keeps it calm. And what comes out: the plan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Rule(StrEnum):
    """Who gets the next worker."""

    SPEED = "speed"
    """The job whose speed it raises most in per cent, jobs nearer their end counting a little more."""
    EQUAL = "equal"
    """The job that is least fulfilled between its minimum and its maximum (weighted max-min)."""
    GREEDY = "greedy"
    """PaddlePaddle EDL's published algorithm, to compare with."""
    RIGID = "rigid"
    """No elasticity: each job has its maximum or waits, first come, first served."""


@dataclass(frozen=True)
class Policy:
    """The knobs, with the reason of each default."""

    rule: Rule = Rule.SPEED
    max_load: float = 1.0
    """The share of each resource up to which workers above a minimum are given; the rest is kept free."""
    nearness: float = 0.5
    """A job's weight falls with its remaining work to this power: 0 is plain fairness, 1 is nearly
    shortest-first. At ½ the mean completion time is near its best and long jobs still progress."""
    lateness: float = 2.0
    """A job's weight grows with its lateness to this power: who got less than an even share so far, because
    others were nearer their end, gets it back later. 0: what was is forgotten."""
    reluctance: float = 2.0
    """A change must save more than this many times what it costs (pause and start-up)."""
    margin: float = 0.1
    """A worker moves from one job to another only if the one gains so much more than the other loses.
    Without it two jobs with the same claim would hand a worker to and fro for ever."""
    last_seconds: float = 60.0
    """No growth when so little time is left to a job."""
    most_starts: int = 256
    """Workers above minimums that one plan starts at most, because images must be pulled."""
    first_size: int = 4
    """A job that was never measured begins with at most so many workers (or its minimum)."""
    guess: float = 1800.0
    """Seconds that a job is taken to need with what it has, while that is not known."""
    suspend: bool = True
    """Whether a job may be suspended for one with much less left, when their minimums do not all fit."""

    def __post_init__(self) -> None:
        if not 0 < self.max_load <= 1:
            raise ValueError(f"max_load {self.max_load}: expected more than 0 and at most 1")
        for name in (
            "nearness",
            "lateness",
            "reluctance",
            "margin",
            "last_seconds",
            "most_starts",
            "first_size",
            "guess",
        ):
            if not (getattr(self, name) >= 0 and math.isfinite(getattr(self, name))):
                raise ValueError(f"{name} {getattr(self, name)}: expected a number not below 0")


@dataclass(frozen=True)
class Decision:
    """What becomes of one job, and why."""

    job: str
    before: int
    target: int
    reason: str
    drain: tuple[str, ...] = ()
    """Worker pods that should leave; others of the job would not make the room that is needed."""
    places: tuple[str, ...] = ()
    """Nodes with room for each worker that is to come. The scheduler may choose others."""
    starts: float | None = None
    """When a job that waits will begin, if that can be told."""
    ends: float | None = None
    """When it will end, if that can be told."""

    def __str__(self) -> str:
        return f"{self.job}: {self.reason}"


@dataclass(frozen=True)
class Waiting:
    """A pod that has no room, and why."""

    pod: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """A size for each job, all of which can be placed at the same time."""

    decisions: Mapping[str, Decision]
    waiting: tuple[Waiting, ...] = ()
    room: Mapping[str, str] = field(default_factory=dict)
    """Nodes with room for each Pending pod of a service, and for masters that do not run: JOB-master."""
    load: Mapping[str, float] | None = None
    """The share of each resource that is spoken for once the plan is carried out."""

    @property
    def targets(self) -> dict[str, int]:
        return {name: decision.target for name, decision in self.decisions.items()}

    @property
    def changes(self) -> list[Decision]:
        return [one for one in self.decisions.values() if one.target != one.before or one.drain]

    def __str__(self) -> str:
        said = [str(one) for one in self.changes] + [f"{one.pod} {one.reason}" for one in self.waiting]
        return "; ".join(said) or "nothing to change"
