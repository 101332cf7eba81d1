"""The status of a TrainingJob, as it is written: all of it at once, from one verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from edl_allreduce.core.controller.facts import Advice, Told, Verdict
from edl_allreduce.core.controller.mail import Progress
from edl_allreduce.core.controller.survey import time_of
from edl_allreduce.core.trainingjob import FINAL, Condition, Phase

Status = dict[str, Any]

INVALID: Final = "InvalidSpec"
REFUSED: Final = "Refused"
"""By the API server: a right, an account, a quota or a policy."""
NO_NEWS: Final = 30.0
"""Seconds by which an expected time may move before it is written anew."""
LAST_SECOND: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()
LONGEST_MESSAGE: Final = 4_000
"""Kubernetes takes 32,768 characters in a condition; people read fewer."""


@dataclass(frozen=True)
class About:
    """What a status needs beside the verdict."""

    generation: int
    selector: str
    """By which its worker pods are found."""
    ready: int
    """Worker pods that run, without those that stand by."""
    advice: Advice | None = None
    warnings: Sequence[str] = ()
    """Parts of its spec that have no effect, with the cure."""


def stamp(seconds: float) -> str:
    """As Kubernetes writes times, which have four digits for the year."""
    return datetime.fromtimestamp(max(0.0, min(LAST_SECOND, seconds)), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def told_in(status: Mapping[str, Any]) -> Told:
    """What an earlier controller wrote, as far as it decides something."""
    try:
        phase = Phase(status.get("phase") or Phase.PENDING)
    except ValueError:
        phase = Phase.PENDING
    said = status.get("trainerStatus") or {}
    return Told(
        phase,
        time_of(status.get("startTime")) or None,
        time_of(status.get("completionTime")) or None,
        Progress(step=int(said.get("step") or 0)),
    )


def written(before: Mapping[str, Any], verdict: Verdict, about: About, now: float) -> Status:
    """The whole status. What does not change keeps its times, so that equal means nothing to write."""
    if verdict.phase in FINAL and not verdict.reason:
        return {**before, "observedGeneration": about.generation}
    said = verdict.progress
    status: Status = {
        "phase": verdict.phase.value,
        "observedGeneration": about.generation,
        "selector": about.selector,
        "workers": {"ready": about.ready, "target": verdict.target},
        "conditions": _conditions(before, verdict, about, now),
    }
    if verdict.started is not None:
        status["startTime"] = stamp(verdict.started)
    if verdict.finished is not None:
        status["completionTime"] = stamp(verdict.finished)
    trainer = _trainer(said)
    if trainer:
        status["trainerStatus"] = trainer
    if said.goodput:
        status["goodput"] = f"{said.goodput:.1%}".replace("%", " %")
    if about.advice is not None and verdict.phase not in FINAL:
        status["plan"] = _plan(before, about.advice)
    return status


def refused(
    before: Mapping[str, Any], why: str, generation: int, now: float, reason: str = INVALID
) -> Status:
    """Of a job whose spec cannot be used: nothing is made, and the cure is told."""
    created = _condition(before, Condition.CREATED, "False", reason, why, generation, now)
    kept = [one for one in before.get("conditions") or () if one.get("type") != Condition.CREATED]
    phase = before.get("phase") or Phase.PENDING.value
    return {**before, "phase": phase, "observedGeneration": generation, "conditions": [created, *kept]}


def hindered(
    before: Mapping[str, Any], verdict: Verdict, about: About, why: str, now: float, *, begun: bool
) -> Status:
    """Of a job for which the API server refused something; `begun`: it has pods, and goes on with those."""
    if begun or verdict.phase in FINAL:
        return written(before, verdict, replace(about, warnings=(*about.warnings, why)), now)
    nothing = replace(verdict, phase=Phase.PENDING, reason=REFUSED, message=why, started=None)
    earlier = {"startTime": before["startTime"]} if "startTime" in before else {}
    return {**written(before, nothing, about, now), **earlier}


def _trainer(said: Progress) -> dict[str, Any]:
    if not said.wall:
        return {}
    found: dict[str, Any] = {"lastUpdatedTime": stamp(said.wall), "step": said.step}
    if said.total_steps:
        found["progressPercentage"] = min(100, 100 * said.step // said.total_steps)
        found["totalSteps"] = said.total_steps
    if said.seconds_left and said.step < said.total_steps:
        found["estimatedRemainingSeconds"] = int(said.seconds_left)
    if said.epoch:
        found["epoch"] = said.epoch
    if said.records_per_second:
        found["recordsPerSecond"] = round(said.records_per_second)
    metrics = {**({"loss": said.loss} if said.loss else {}), **said.metrics}
    if metrics:
        found["metrics"] = [{"name": name, "value": f"{value:.6g}"} for name, value in metrics.items()]
    return found


def _plan(before: Mapping[str, Any], advice: Advice) -> dict[str, Any]:
    old = before.get("plan") or {}
    found: dict[str, Any] = {"reason": advice.reason[:LONGEST_MESSAGE]}
    for name, seconds in (("expectedStart", advice.starts), ("expectedEnd", advice.ends)):
        if seconds is None:
            continue
        near = abs(time_of(old.get(name)) - seconds) < NO_NEWS
        found[name] = old[name] if near else stamp(seconds)
    return found


# ------------------------------------------------------------------------------------------ conditions


def _conditions(
    before: Mapping[str, Any], verdict: Verdict, about: About, now: float
) -> list[dict[str, Any]]:
    phase, said = verdict.phase, verdict.progress
    over = phase in FINAL
    trains = phase is Phase.RUNNING or (phase is Phase.SCALING and said.ring > 0)
    degraded = "; ".join([*([verdict.degraded] if verdict.degraded else []), *about.warnings])
    facts: dict[Condition, tuple[bool, str, str]] = {
        Condition.CREATED: (True, "Made", "the objects of the job are made")
        if verdict.started is not None or phase is Phase.SUSPENDED
        else (False, verdict.reason, verdict.message),
        Condition.RUNNING: (trains and not over, verdict.reason, verdict.message or "it trains"),
        Condition.SCALING: (phase is Phase.SCALING, verdict.reason, verdict.message),
        Condition.SUSPENDED: (phase is Phase.SUSPENDED, verdict.reason, verdict.message),
        Condition.DEGRADED: (bool(degraded) and not over, "Degraded" if degraded else "Well", degraded),
        Condition.SUCCEEDED: (
            phase in (Phase.SUCCEEDED, Phase.STOPPED),
            verdict.reason,
            verdict.message,
        ),
        Condition.FAILED: (phase is Phase.FAILED, verdict.reason, verdict.message),
    }
    return [
        _condition(
            before,
            kind,
            "True" if so else "False",
            reason,
            text if so or kind is Condition.CREATED else "",
            about.generation,
            now,
        )
        for kind, (so, reason, text) in facts.items()
        # What never was is not told to be not so: a job that has not failed has no condition Failed.
        if so or kind in ALWAYS or _found(before, kind) is not None
    ]


ALWAYS: Final = frozenset({Condition.CREATED, Condition.RUNNING})


def _condition(
    before: Mapping[str, Any],
    kind: Condition,
    status: str,
    reason: str,
    message: str,
    generation: int,
    now: float,
) -> dict[str, Any]:
    old = _found(before, kind) or {}
    same = old.get("status") == status
    return {
        "type": kind.value,
        "status": status,
        "reason": reason or "Unknown",
        "message": message[:LONGEST_MESSAGE],
        "observedGeneration": generation,
        "lastTransitionTime": old["lastTransitionTime"]
        if same and old.get("lastTransitionTime")
        else stamp(now),
    }


def _found(status: Mapping[str, Any], kind: Condition) -> Mapping[str, Any] | None:
    return next((one for one in status.get("conditions") or () if one.get("type") == kind), None)
