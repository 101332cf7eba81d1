"""What the controller and a job's master write to each other, as annotations of the master's pod.

The controller writes `Orders`, the master `Progress`. So the controller alone writes the status of a
TrainingJob, and a job's own account needs no right on TrainingJobs. Both sides read what the other wrote as
text from outside: bounded, and whatever cannot be read is as if it were not there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

WORKERS: Final = "elasticdl.org/workers"
"""Annotation: how many workers the master should keep."""
LEAVING: Final = "elasticdl.org/drain"
"""Annotation: which workers should leave first, by number: others would not make the room that is needed."""
STOP: Final = "elasticdl.org/stop"
"""Annotation: why the job should stop at a step boundary with a checkpoint; empty while it should not."""
TERM: Final = "elasticdl.org/term"
"""Annotation: the term of the controller that wrote the orders. A master does not follow an earlier one."""
PROGRESS: Final = "elasticdl.org/progress"
"""Annotation: how far the job is, as JSON, by its master."""
CRASHES: Final = "elasticdl.org/crashes"
"""Annotation: how many masters before this one crashed in a row, without a word."""

MOST_WORKERS: Final = 100_000
MOST_SIZES: Final = 32
"""Sizes of which the step time is told: enough for a curve, and bounded."""
MOST_METRICS: Final = 16
LONGEST_TEXT: Final = 1_000
LONGEST_PROGRESS: Final = 32_000
"""Characters; Kubernetes takes 262,144 for all annotations of an object together."""


@dataclass(frozen=True)
class Orders:
    """What the controller wants of a master."""

    workers: int
    leaving: tuple[int, ...] = ()
    stop: str = ""
    term: int = 0

    def annotations(self) -> dict[str, str]:
        return {
            WORKERS: str(self.workers),
            LEAVING: ",".join(map(str, self.leaving)),
            STOP: self.stop[:LONGEST_TEXT],
            TERM: str(self.term),
        }


def orders_in(annotations: Mapping[str, str]) -> Orders | None:
    """The orders on a pod; None when there are none that can be read."""
    workers = _count(annotations.get(WORKERS, ""))
    if workers is None:
        return None
    numbers = (_count(part) for part in annotations.get(LEAVING, "").split(","))
    return Orders(
        workers,
        tuple(number for number in numbers if number is not None),
        annotations.get(STOP, "")[:LONGEST_TEXT],
        _count(annotations.get(TERM, "")) or 0,
    )


def _count(text: str) -> int | None:
    text = text.strip()
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        return None
    number = int(text)
    return number if number <= MOST_WORKERS * 1000 else None


@dataclass(frozen=True)
class Progress:
    """A job as its master tells it. Numbers that are not known are 0."""

    phase: str = ""
    """Of the job: Starting, Training, Waiting, Finishing, Succeeded, Stopped, Failed."""
    reason: str = ""
    """Why it ended, or what it waits for."""
    wall: float = 0.0
    """When it was written, in seconds since 1970."""
    wanted: int = 0
    """Workers that the master keeps."""
    ring: int = 0
    """Workers that train together."""
    step: int = 0
    total_steps: int = 0
    epoch: int = 0
    epochs: int = 0
    records_per_second: float = 0.0
    seconds_left: float = 0.0
    """Until the last step at the present speed."""
    loss: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Of the last evaluation."""
    next_id: int = 0
    """The least number that no worker had yet."""
    step_seconds: Mapping[int, float] = field(default_factory=dict)
    """Seconds per step by number of workers, at the sizes that were run."""
    pause: float = 0.0
    """Seconds for which training stands still in a re-form."""
    start_up: float = 0.0
    """Seconds from the order for a worker until it trains."""
    goodput: float = 0.0
    """Share of the time since the beginning in which steps were made that count."""
    checkpoint: int = 0
    """Step of the last checkpoint that was written; 0 without one."""
    path: str = ""
    """Where the result was written."""

    def text(self) -> str:
        """As JSON, within the bounds."""
        sizes = sorted(self.step_seconds.items())
        # The ends of a curve say most: of too many sizes those in the middle go.
        kept = sizes[: MOST_SIZES // 2] + sizes[-MOST_SIZES // 2 :] if len(sizes) > MOST_SIZES else sizes
        value = {one.name: getattr(self, one.name) for one in fields(self)}
        value["reason"] = self.reason[:LONGEST_TEXT]
        value["path"] = self.path[:LONGEST_TEXT]
        value["step_seconds"] = {str(size): _rounded(seconds) for size, seconds in kept}
        metrics = [(name[:100], _rounded(number)) for name, number in self.metrics.items()]
        value["metrics"] = dict(metrics[:MOST_METRICS])
        for one in fields(self):
            if isinstance(value[one.name], float):
                value[one.name] = _rounded(value[one.name])
        value["wall"] = round(self.wall, 1)
        return json.dumps({name: one for name, one in value.items() if one}, separators=(",", ":"))


def _rounded(number: float) -> float:
    """Six digits say enough; JSON knows no NaN."""
    return float(f"{number:.6g}") if math.isfinite(number) else 0.0


def read_progress(text: str) -> Progress | None:
    """What a master wrote; None when it cannot be read."""
    if not text or len(text) > LONGEST_PROGRESS:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    return Progress(
        phase=_text(value, "phase"),
        reason=_text(value, "reason"),
        wall=_number(value, "wall"),
        wanted=_whole(value, "wanted"),
        ring=_whole(value, "ring"),
        step=_whole(value, "step"),
        total_steps=_whole(value, "total_steps"),
        epoch=_whole(value, "epoch"),
        epochs=_whole(value, "epochs"),
        records_per_second=_number(value, "records_per_second"),
        seconds_left=_number(value, "seconds_left"),
        loss=_number(value, "loss", negative=True),
        metrics=_metrics(value.get("metrics")),
        next_id=_whole(value, "next_id"),
        step_seconds=_sizes(value.get("step_seconds")),
        pause=_number(value, "pause"),
        start_up=_number(value, "start_up"),
        goodput=min(1.0, _number(value, "goodput")),
        checkpoint=_whole(value, "checkpoint"),
        path=_text(value, "path"),
    )


def _text(value: Mapping[str, Any], name: str) -> str:
    found = value.get(name, "")
    return found[:LONGEST_TEXT] if isinstance(found, str) else ""


def _is_number(found: object) -> bool:
    if not isinstance(found, int | float) or isinstance(found, bool):
        return False
    return math.isfinite(found) and abs(found) < 1e18


def _number(value: Mapping[str, Any], name: str, *, negative: bool = False) -> float:
    found = value.get(name, 0.0)
    return float(found) if _is_number(found) and (negative or found >= 0) else 0.0


def _whole(value: Mapping[str, Any], name: str) -> int:
    return int(_number(value, name))


def _metrics(found: object) -> dict[str, float]:
    if not isinstance(found, dict):
        return {}
    numbers = [(str(name)[:100], float(one)) for name, one in found.items() if _is_number(one)]
    return dict(numbers[:MOST_METRICS])


def _sizes(found: object) -> dict[int, float]:
    if not isinstance(found, dict):
        return {}
    known: dict[int, float] = {}
    for size, seconds in list(found.items())[:MOST_SIZES]:
        number = _count(size) if isinstance(size, str) else None
        if number and number <= MOST_WORKERS and _is_number(seconds) and seconds > 0:
            known[number] = float(seconds)
    return known


SMOOTHING: Final = 0.3
"""How much of the last sample counts: one slow minute must not make a size look slow for ever."""


def measured(known: Mapping[int, float], size: int, seconds: float) -> dict[int, float]:
    """Step times by size with one more sample; the newest are kept where there are too many."""
    if size < 1 or not (math.isfinite(seconds) and seconds > 0):
        return dict(known)
    before = known.get(size)
    value = seconds if before is None else before + SMOOTHING * (seconds - before)
    rest = {n: t for n, t in known.items() if n != size}
    return {**dict(list(rest.items())[-(MOST_SIZES - 1) :]), size: value}
