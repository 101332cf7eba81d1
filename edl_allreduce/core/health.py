"""Which workers live, and which only seem to: pure judgements over heartbeats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from edl_allreduce.core.deadlines import Deadlines


class Activity(StrEnum):
    """What a worker's training thread is doing."""

    PREPARING = "preparing"
    IDLE = "idle"
    """Waits for a plan."""
    JOINING = "joining"
    COMPUTING = "computing"
    """In user code: reading data, forward, backward, callbacks."""
    REDUCING = "reducing"
    """Waits for the other ranks in a collective."""


@dataclass(frozen=True)
class Pulse:
    """The last heartbeat of a worker, and since when it tells the same."""

    heard: float
    activity: Activity = Activity.PREPARING
    step: int = 0
    done: int = 0
    """Finished pieces of an activity that has pieces."""
    since: float | None = None
    """None before the first heartbeat: since it was first heard."""

    @property
    def begun(self) -> float:
        return self.heard if self.since is None else self.since

    def beat(self, activity: Activity, step: int, now: float, done: int = 0) -> Pulse:
        same = (activity, step, done) == (self.activity, self.step, self.done)
        since = self.begun if same else now
        return replace(self, heard=now, activity=activity, step=step, done=done, since=since)


@dataclass(frozen=True)
class Verdict:
    """A worker that must be replaced, and why."""

    uid: str
    stuck: bool
    reason: str


def heard_of(pulses: Mapping[str, Pulse], now: float, deadlines: Deadlines) -> set[str]:
    """Those who were heard just now. Where the network is cut all fall silent at once, within a heartbeat."""
    return {uid for uid, pulse in pulses.items() if now - pulse.heard <= 2 * deadlines.heartbeat}


def deaf(pulses: Mapping[str, Pulse], now: float, deadlines: Deadlines, holders: frozenset[str]) -> bool:
    """Whether nobody is heard, or nobody of those who hold the model."""
    heard = heard_of(pulses, now, deadlines)
    return bool(pulses) and (not heard or bool(holders & pulses.keys() and not heard & holders))


def judge(
    pulses: Mapping[str, Pulse],
    now: float,
    deadlines: Deadlines,
    usual_step: float,
    holders: frozenset[str] = frozenset(),
    patience: float = 0.0,
) -> list[Verdict]:
    """Name every worker that is silent, or for whose part of a step the others wait too long.

    Whoever hears nobody doubts itself first: then it is the network, or this very machine. The same where
    only workers are heard that do not hold the model (`holders` do): those who do are given up last, after
    `patience`.
    """
    verdicts = []
    heard = heard_of(pulses, now, deadlines)
    doubtful = deaf(pulses, now, deadlines, holders)
    waiting = [p.begun for p in pulses.values() if p.activity is Activity.REDUCING]
    for uid, pulse in pulses.items():
        quiet = now - pulse.heard
        preparing = pulse.activity is Activity.PREPARING
        limit = deadlines.silent_import if preparing else deadlines.silent
        if doubtful and (uid in holders or not heard):
            limit = max(limit, deadlines.reunion, patience)
        if quiet > limit:
            verdicts.append(
                Verdict(uid, False, f"sent no heartbeat for {quiet:.1f} s (frozen, or its network is cut)")
            )
            continue
        busy = now - pulse.begun
        # What counts is how long others have waited: a rank that all waited with is not the culprit.
        awaited = now - max(pulse.begun, min(waiting)) if waiting else 0.0
        stuck = awaited > deadlines.stuck(usual_step) or busy > deadlines.stuck(usual_step, alone=True)
        if pulse.activity is Activity.COMPUTING and stuck:
            others = f", and others have waited for {awaited:.1f} s" if waiting else ""
            reason = f"has been in user code of step {pulse.step} for {busy:.1f} s{others}"
            verdicts.append(Verdict(uid, True, reason))
        elif preparing and busy > deadlines.prepare:
            verdicts.append(Verdict(uid, True, f"has not finished its preparations after {busy:.1f} s"))
    return verdicts
