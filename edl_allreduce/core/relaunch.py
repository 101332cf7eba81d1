"""What to do when a worker ended: a pure table from its cause."""

from __future__ import annotations

from dataclasses import dataclass

from edl_allreduce.core.causes import FREE, SENTENCE, Cause
from edl_allreduce.core.deadlines import doubled


@dataclass(frozen=True)
class Relaunch:
    """Start the next id after `delay` seconds."""

    delay: float
    reason: str


@dataclass(frozen=True)
class Leave:
    """Start nobody."""

    reason: str


@dataclass(frozen=True)
class Unreplaced:
    """Start nobody, since the user wants it so; the others go on."""

    reason: str


@dataclass(frozen=True)
class GiveUp:
    """The job fails."""

    reason: str


Decision = Relaunch | Leave | Unreplaced | GiveUp

FIRST_DELAY = 1.0
LONGEST_DELAY = 60.0
FIRST_RETRY = 5.0
"""Seconds until the next newcomer when one could not begin: a person has to mend what is in its way."""
LAST_TRIES = 3
"""Newcomers that may fail to begin when nobody trains any more and only they could go on."""


@dataclass(frozen=True)
class Worker:
    """The worker that ended, as far as its end has to be judged."""

    cause: Cause
    accepted: bool = True
    """It was ready and fit the rest. One that never was is a newcomer that could not begin."""
    repeats: int = 0
    """Failures before this one with the same exception in the same line at the same step."""


@dataclass(frozen=True)
class Around:
    """What the job looks like without the worker that ended."""

    running: int
    """Workers that the master started and that live, ready or not."""
    wanted: int
    healthy: int = 0
    """Workers that are ready or train."""
    begun: bool = False
    """Somebody was ready once, so the job can run."""
    failures: int = 0
    """Ends before this one that were the job's own fault."""
    budget: int = 0
    refusals: int = 0
    """Newcomers in a row, before this one, that could not begin."""
    minimum: int = 1
    replaces: bool = True
    """Whether lost workers are replaced at all (--aux_params=disable_relaunch=true: they are not)."""


def decide(worker: Worker, around: Around) -> Decision:
    """What becomes of the place of a worker that ended."""
    cause = worker.cause
    if cause is Cause.FINISHED:
        return Leave("it finished")
    if is_refusal(worker, around):
        return _after_refusal(cause, around)
    if cause is Cause.INVALID:
        return GiveUp("the job cannot run as it is described")
    if cause not in FREE and around.failures >= around.budget:
        allowed = f"not more than {around.budget} failures are allowed (--max_worker_crashes)"
        return GiveUp(f"a worker {SENTENCE[cause]}, and {allowed}")
    if worker.repeats:
        return GiveUp("it is the same failure in the same place at the same step as before")
    if around.running >= around.wanted:
        return _enough(around)
    if not around.replaces:
        return _unreplaced(around)
    if cause in FREE:
        delay = FIRST_DELAY if cause is Cause.REJECTED else 0.0  # the node may refuse the next one as fast
        return Relaunch(delay, f"a worker {SENTENCE[cause]}")
    delay = doubled(FIRST_DELAY, around.failures, LONGEST_DELAY)
    return Relaunch(
        delay, f"a worker {SENTENCE[cause]}; failure {around.failures + 1} of {around.budget} allowed"
    )


def _after_refusal(cause: Cause, around: Around) -> Decision:
    """A newcomer never ends a job that others carry; without others only newcomers can carry it on."""
    if not around.healthy and around.refusals + 1 >= LAST_TRIES:
        return GiveUp(f"nobody trains any more, and {around.refusals + 1} newcomers in a row could not begin")
    if around.running >= around.wanted:
        return _enough(around)
    if not around.replaces:
        return _unreplaced(around)
    others = f"{around.healthy} train on" if around.healthy else "nobody trains meanwhile"
    return Relaunch(
        doubled(FIRST_RETRY, around.refusals, LONGEST_DELAY), f"a newcomer {SENTENCE[cause]}; {others}"
    )


def _enough(around: Around) -> Leave:
    return Leave(f"{around.running} workers are enough for {around.wanted} wanted")


def _unreplaced(around: Around) -> Decision:
    """Nobody comes any more, so too few will always be too few."""
    rule = "lost workers are not replaced (--aux_params=disable_relaunch=true)"
    minimum = max(1, around.minimum)
    if around.running < minimum:
        return GiveUp(f"{rule}, and {around.running} of at least {minimum} workers are left")
    return Unreplaced(f"{rule}; {around.running} go on")


def is_refusal(worker: Worker, around: Around) -> bool:
    """Whether this end counts as a newcomer that could not begin, and not against the budget of crashes."""
    return worker.cause not in FREE and not worker.accepted and around.begun
