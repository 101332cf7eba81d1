"""Which workers live, and which only seem to: pure judgements over heartbeats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from edl_allreduce.core.deadlines import Deadlines


class Activity(str, Enum):
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
    since: float = 0.0

    def beat(self, activity: Activity, step: int, now: float) -> Pulse:
        same = activity is self.activity and step == self.step
        return replace(self, heard=now, activity=activity, step=step, since=self.since if same else now)


@dataclass(frozen=True)
class Verdict:
    """A worker that must be replaced, and why."""

    uid: str
    stuck: bool
    reason: str


ALONE_FACTOR = 10
"""When nobody waits for a slow rank it gets ten times longer: ending the last rank loses the model."""


def judge(
    pulses: Mapping[str, Pulse], now: float, deadlines: Deadlines, usual_step: float
) -> list[Verdict]:
    """Name every worker that is silent, or for whose part of a step the others wait too long."""
    verdicts = []
    somebody_waits = any(p.activity is Activity.REDUCING for p in pulses.values())
    for uid, pulse in pulses.items():
        quiet = now - pulse.heard
        if quiet > deadlines.silent:
            verdicts.append(
                Verdict(uid, False, f"sent no heartbeat for {quiet:.1f} s (frozen, or its network is cut)")
            )
            continue
        limit = deadlines.stuck(usual_step) * (1 if somebody_waits else ALONE_FACTOR)
        busy = now - pulse.since
        if pulse.activity is Activity.COMPUTING and busy > limit:
            reason = f"has been in user code of step {pulse.step} for {busy:.1f} s while others wait"
            verdicts.append(Verdict(uid, True, reason))
    return verdicts
