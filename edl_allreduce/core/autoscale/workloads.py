"""Workloads to replay: jobs with the time they were submitted, from a file or from a generator of our own."""

from __future__ import annotations

import csv
import io
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

COLUMNS: Final = ("name", "time", "workers", "seconds")
PUBLIC: Final = ("name", "time", "application", "num_replicas", "batch_size")


@dataclass(frozen=True)
class Submission:
    """A job of a workload, with the truth about its speed, which no planner is told in advance."""

    name: str
    time: float
    workers: int
    """What its user would have asked for without elasticity."""
    maximum: int
    steps: float
    a: float
    b: float = 0.0
    """Seconds per step are a/n + b with n workers ..."""
    table: Mapping[int, float] = field(default_factory=dict)
    """... unless they were measured."""
    weight: float = 1.0
    priority: int = 0

    def step(self, workers: int) -> float:
        return self.table.get(workers) or self.a / workers + self.b


class BadWorkload(ValueError):
    """A file is not what a replay needs; the message names the line and the cure."""


def read(text: str, speeds: str | None = None) -> list[Submission]:
    """The jobs of a CSV file: our columns, or those of public workloads with a table of speeds beside it."""
    rows = csv.DictReader(io.StringIO(text))
    columns = set(rows.fieldnames or ())
    if columns >= set(PUBLIC):
        if speeds is None:
            raise BadWorkload(
                "its jobs name an application and a batch size but no speed; name a table with --speeds"
            )
        table = _speeds(speeds)
        found = [_public(row, table, line) for line, row in _lines(rows)]
    elif columns >= set(COLUMNS):
        found = [_own(row, line) for line, row in _lines(rows)]
    else:
        raise BadWorkload(
            f"expected the columns {', '.join(COLUMNS)} (and if you like max, fixed, weight, priority), "
            f"or {', '.join(PUBLIC)}; got {', '.join(rows.fieldnames or ()) or 'an empty file'}"
        )
    if not found:
        raise BadWorkload("it has no jobs")
    names = [one.name for one in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadWorkload(f"two jobs are called {twice}; give each its own name")
    return found


def _lines(rows: csv.DictReader[str]) -> Iterator[tuple[int, Mapping[str, str]]]:
    for row in rows:
        yield rows.line_num, row


def _own(row: Mapping[str, str], line: int) -> Submission:
    workers = _whole(row, "workers", line)
    seconds = _number(row, "seconds", line, above=0.0)
    fixed = _number(row, "fixed", line, default=0.02)
    if not 0 <= fixed < 1:
        raise BadWorkload(f"line {line}: fixed={fixed}; expected a share from 0 to below 1")
    return Submission(
        _name(row, line),
        _number(row, "time", line),
        workers,
        maximum=_whole(row, "max", line, default=2 * workers),
        steps=seconds,
        a=1 - fixed,
        b=fixed,
        weight=_number(row, "weight", line, default=1.0, above=0.0),
        priority=int(_number(row, "priority", line, default=0.0)),
    )


def _public(row: Mapping[str, str], table: Mapping[str, _Measured], line: int) -> Submission:
    kind = f"{row['application']}|{row['batch_size']}"
    if kind not in table:
        raise BadWorkload(
            f"line {line}: the table of speeds has no {kind!r}; it has {', '.join(sorted(table))}"
        )
    measured = table[kind]
    return Submission(
        _name(row, line),
        _number(row, "time", line),
        _whole(row, "num_replicas", line),
        maximum=max(measured.steps),
        steps=measured.work,
        a=measured.steps[1],
        table=measured.steps,
    )


@dataclass(frozen=True)
class _Measured:
    work: float
    steps: Mapping[int, float]


def _speeds(text: str) -> dict[str, _Measured]:
    """{"application|batch": {"W": steps, "st": {"workers": seconds per step}}}, for 1, 2, 3, … workers."""
    try:
        found = {
            kind: _Measured(float(entry["W"]), {int(n): float(s) for n, s in entry["st"].items()})
            for kind, entry in json.loads(text).items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadWorkload(
            'the table of speeds must be JSON like {"resnet|256": {"W": 9000, "st": {"1": 0.8, "2": 0.42}}}: '
            f"{type(error).__name__} {error}"
        ) from error
    for kind, entry in found.items():
        if sorted(entry.steps) != list(range(1, len(entry.steps) + 1)) or min(entry.steps.values()) <= 0:
            raise BadWorkload(f"the table of speeds: {kind} needs seconds above 0 for 1, 2, 3, … workers")
    return found


def _name(row: Mapping[str, str], line: int) -> str:
    if not row["name"]:
        raise BadWorkload(f"line {line}: a job without a name")
    return row["name"]


def _whole(row: Mapping[str, str], column: str, line: int, default: int | None = None) -> int:
    number = _number(row, column, line, default=None if default is None else float(default))
    if number != int(number) or number < 1:
        raise BadWorkload(f"line {line}: {column}={row[column]}; expected a whole number from 1")
    return int(number)


def _number(
    row: Mapping[str, str],
    column: str,
    line: int,
    default: float | None = None,
    above: float = -math.inf,
) -> float:
    text = row.get(column) or ""
    if not text and default is not None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > above):
        wanted = "a number" if above == -math.inf else f"a number above {above:g}"
        raise BadWorkload(f"line {line}: {column}={text!r}; expected {wanted}")
    return number


@dataclass(frozen=True)
class Kind:
    """A sort of job that the generator draws."""

    name: str
    share: float
    hours: tuple[float, float]
    """Training time with one worker: log-uniform between these."""
    fixed: tuple[float, float]
    """The share of a step that more workers do not shorten: uniform between these."""
    workers: tuple[int, ...]
    """What users ask for, each as likely as the others."""


KINDS: Final[Sequence[Kind]] = (
    Kind("small", 0.40, (0.1, 1.0), (0.05, 0.30), (1, 1, 2, 4)),
    Kind("medium", 0.40, (0.5, 5.0), (0.02, 0.10), (1, 2, 4, 8)),
    Kind("large", 0.15, (3.0, 25.0), (0.005, 0.05), (4, 8, 12)),
    Kind("huge", 0.05, (20.0, 80.0), (0.005, 0.02), (8, 16, 24)),
)
"""Shaped like Microsoft's Philly cluster as it is published: most jobs are short and small, a few long ones
take most of the time. The figures are ours."""


def generate(jobs: int = 160, hours: float = 8.0, seed: int = 1) -> list[Submission]:
    """A workload for everybody: the same arguments give the same jobs.

    Jobs come as a Poisson stream that is three times as dense in the middle third of the time as at its
    edges (a working day). Work, speed and size are drawn by `KINDS`; the maximum is four times the ask.
    """
    draw = random.Random(f"elasticdl {seed}")
    times = sorted(_time_of_day(draw) * hours * 3600 for _ in range(jobs))
    found = []
    for number, time in enumerate(times):
        kind = draw.choices(KINDS, [kind.share for kind in KINDS])[0]
        low, high = kind.hours
        seconds = 3600 * low * (high / low) ** draw.random()
        fixed = draw.uniform(*kind.fixed)
        workers = draw.choice(kind.workers)
        most = min(4 * workers, 64)
        name = f"{kind.name}-{number}"
        found.append(Submission(name, round(time, 1), workers, most, seconds, 1 - fixed, fixed))
    return found


def _time_of_day(draw: random.Random) -> float:
    """Between 0 and 1; the middle third has three fifths of all jobs."""
    third = draw.choices((0, 1, 2), (1, 3, 1))[0]
    return (third + draw.random()) / 3
