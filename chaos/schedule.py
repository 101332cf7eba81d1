"""Random cases from a seed: the same seed gives the same case on every machine."""

from __future__ import annotations

from random import Random
from typing import TypeVar

from chaos.data import STEPS_PER_EPOCH
from chaos.faults import CONNECTIONS, LETHAL, Case, Fault, Kind, Moment, Shape, Style, Who, Wire

T = TypeVar("T")

STEPS_PER_SECOND = 10
"""About how fast a job trains while faults are done to it; the driver sets the pace."""
DETECTION_SECONDS = 3.0
LONGEST_PAUSE = 8.0

KINDS = {
    Kind.KILL: 16,
    Kind.TERMINATE: 8,
    Kind.TERMINATE_THEN_KILL: 4,
    Kind.FREEZE: 16,
    Kind.RESET: 10,
    Kind.RESET_ONE_SIDE: 10,
    Kind.DROP: 12,
    Kind.SLOW: 5,
    Kind.NO_MEMORY: 1,
    Kind.FULL_DISK: 3,
    Kind.HOG: 2,
}
"""Out of their sum, so often."""
VICTIMS = {Who.ONE: 8, Who.SEVERAL: 3, Who.ALL: 2, Who.NEWCOMER: 3, Who.MASTER: 3}
MOMENTS = {Moment.NOW: 14, Moment.PLAN: 3, Moment.READY: 2, Moment.CHECKPOINT: 1, Moment.EVALUATION: 1}
ENDS = {Moment.LAST_STEPS: 2, Moment.FINISH: 2}


def case_of(seed: int, faults: int = 0, style: Style | None = None, mean: float = 2.0) -> Case:
    """A job with so many faults (by default a dozen or two), `mean` seconds from one to the next."""
    random = Random(f"case {seed}")
    careful = bool(faults) or random.random() < 0.6
    number = faults or random.randint(8, 24)
    chosen = style or random.choice(list(Style))
    ends = 0 if faults else random.choice((0, 1, 1, 2))
    made = [_fault(random, careful, mean, MOMENTS) for _ in range(number - ends)]
    made += [_fault(random, careful, mean, ENDS) for _ in range(ends)]
    seconds = sum(fault.pause for fault in made)
    epochs = max(10, round(seconds * STEPS_PER_SECOND / STEPS_PER_EPOCH))
    shape = Shape(
        style=chosen,
        workers=4 if faults else random.choice((2, 3, 3, 4)),
        careful=careful,
        steps=epochs * STEPS_PER_EPOCH,
        detection=DETECTION_SECONDS,
        checkpoint_steps=random.choice((40, 100)),
        evaluation_steps=random.choice((0, 60, 150)),
    )
    return Case(seed, shape, tuple(made))


def _choose(random: Random, weights: dict[T, int]) -> T:
    return random.choices(list(weights), list(weights.values()))[0]


def _fault(random: Random, careful: bool, mean: float, moments: dict[Moment, int]) -> Fault:
    kind = _choose(random, KINDS)
    who = Who.MACHINE if kind in (Kind.FULL_DISK, Kind.HOG) else _choose(random, VICTIMS)
    if kind is Kind.NO_MEMORY:
        who = Who.ONE
    if careful and who is Who.ALL and kind in LETHAL:
        who = Who.SEVERAL
    if who is Who.MASTER and kind in LETHAL:
        kind = Kind.KILL
    wire = Wire.NONE
    if kind in CONNECTIONS:
        wire = (
            Wire.STREAM
            if who is Who.MASTER
            else random.choice([Wire.STREAM, Wire.RING, Wire.RING, Wire.STORE])
        )
    return Fault(
        pause=round(min(random.expovariate(1 / mean), LONGEST_PAUSE), 2),
        kind=kind,
        who=who,
        wire=wire,
        seconds=_seconds(random, kind, who),
        moment=_choose(random, moments),
        pick=random.randrange(1 << 30),
    )


def _seconds(random: Random, kind: Kind, who: Who) -> float:
    """Shorter than silence is waited for, or longer: both, since they mean different things."""
    if kind is Kind.TERMINATE_THEN_KILL:
        return round(random.uniform(0.0, 0.2), 2)
    if kind is Kind.KILL:
        return round(random.uniform(0.1, 3.0), 2) if who is Who.MASTER else 0.0
    if kind in (Kind.TERMINATE, Kind.RESET):
        return 0.0
    if kind in (Kind.FREEZE, Kind.DROP, Kind.RESET_ONE_SIDE) and random.random() < 0.3:
        return round(DETECTION_SECONDS * random.uniform(1.2, 2.5), 1)
    return round(random.uniform(0.3, 0.8 * DETECTION_SECONDS), 1)
