"""What a case is: a job, and the faults that are done to it from outside. Plain data, written as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """What is done."""

    KILL = "kill"
    TERMINATE = "terminate"
    TERMINATE_THEN_KILL = "terminate, then kill"
    FREEZE = "freeze"
    RESET = "reset"
    RESET_ONE_SIDE = "reset one side"
    DROP = "drop"
    SLOW = "slow"
    NO_MEMORY = "no memory"
    FULL_DISK = "full disk"
    HOG = "hog"


class Who(StrEnum):
    """Whom it meets; which of them is decided when it happens."""

    ONE = "one"
    SEVERAL = "several"
    ALL = "all"
    NEWCOMER = "newcomer"
    MASTER = "master"
    MACHINE = "machine"


class Wire(StrEnum):
    """Which connections of a process."""

    NONE = ""
    STREAM = "stream"
    """To the master."""
    STORE = "store"
    """Horovod's rendezvous, inside of one worker."""
    RING = "ring"
    """Gloo's, between workers."""


class Moment(StrEnum):
    """When, after the pause: at once, or as soon as this is seen to happen."""

    NOW = ""
    PLAN = "plan"
    READY = "ready"
    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"
    LAST_STEPS = "last steps"
    FINISH = "finish"


class Style(StrEnum):
    """Who starts the workers."""

    LOCAL = "local"
    BY_HAND = "by hand"


CONNECTIONS = frozenset({Kind.RESET, Kind.RESET_ONE_SIDE, Kind.DROP, Kind.SLOW})
LETHAL = frozenset({Kind.KILL, Kind.TERMINATE, Kind.TERMINATE_THEN_KILL, Kind.NO_MEMORY})
"""Whoever it meets will not train on."""


@dataclass(frozen=True)
class Fault:
    """One fault from outside."""

    pause: float
    """Seconds after the fault before it began."""
    kind: Kind
    who: Who
    wire: Wire = Wire.NONE
    seconds: float = 0.0
    """How long it lasts; of a master that is killed, until the same command is given again."""
    moment: Moment = Moment.NOW
    pick: int = 0
    """Decides whom it meets among those that it could meet."""

    def __str__(self) -> str:
        wire = f" {self.wire} of" if self.wire else ""
        when = f" at {self.moment}" if self.moment else ""
        return f"{self.kind}{wire} {self.who}{when}" + (f", {self.seconds:.1f} s" if self.seconds else "")


def instead(fault: Fault) -> list[Fault]:
    """This fault, then what is done when there is nobody whom it could meet: the storm does not pause."""
    soft = Fault(fault.pause, Kind.RESET, Who.ALL, Wire.STREAM, pick=fault.pick)
    if fault.kind is Kind.NO_MEMORY:
        return [fault, soft]  # a newcomer without memory may end a job that nobody else carries
    others = [fault]
    if fault.wire is Wire.STORE:
        others.append(replace(fault, wire=Wire.RING))
    if fault.who is not Who.NEWCOMER:
        others.append(replace(others[-1], who=Who.NEWCOMER))
    return [*others, replace(others[0], who=Who.ONE), soft]


@dataclass(frozen=True)
class Shape:
    """The job."""

    style: Style
    workers: int
    careful: bool
    """One who holds the model is always spared, so no step may be made twice."""
    steps: int
    detection: float
    checkpoint_steps: int
    evaluation_steps: int


@dataclass(frozen=True)
class Case:
    """One job with its faults; all of it follows from the seed, or was left over by shrinking."""

    seed: int
    shape: Shape
    faults: tuple[Fault, ...]

    @property
    def seconds(self) -> float:
        """Of the schedule, from the first step on."""
        return sum(fault.pause for fault in self.faults)


def to_data(case: Case) -> dict[str, Any]:
    return asdict(case)


def from_data(data: dict[str, Any]) -> Case:
    shape = {**data["shape"], "style": Style(data["shape"]["style"])}
    return Case(data["seed"], Shape(**shape), tuple(_fault(entry) for entry in data["faults"]))


def _fault(entry: dict[str, Any]) -> Fault:
    words = {
        "kind": Kind(entry["kind"]),
        "who": Who(entry["who"]),
        "wire": Wire(entry["wire"]),
        "moment": Moment(entry["moment"]),
    }
    return Fault(**{**entry, **words})
