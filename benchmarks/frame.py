"""What all benchmarks share: figures with their spread, a table with the peer beside ours, one last line.

These machines are noisy. Contestants take turns within a round, so that whatever else the machine does hits
all of them; a ratio is taken within a round, and medians over rounds are shown with the lowest and highest.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from edl_allreduce import clock
from edl_allreduce.contract import EXIT_TERMINATED
from edl_allreduce.core.audit import Verdict
from edl_allreduce.errors import EdlError

WIDTH = 110
NOTHING = "-"
PACKAGES = ("edl-allreduce", "horovod", "tensorflow-cpu", "tensorflow", "keras", "numpy", "mpi4py")


class BenchmarkFailed(EdlError):
    """A contestant did not run, or ran wrongly: there is nothing to compare."""


@dataclass(frozen=True)
class Figure:
    """Repeated measurements of one thing."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Iterable[float]) -> Figure:
        return cls(tuple(values))

    @property
    def median(self) -> float:
        return statistics.median(self.values) if self.values else float("nan")

    def text(self, form: str = "{:.2f}", scale: float = 1.0) -> str:
        """Median, and the lowest and highest where there is more than one."""
        if not self.values:
            return NOTHING
        middle = form.format(self.median * scale)
        if len(self.values) == 1:
            return middle
        low, high = (form.format(edge(self.values) * scale) for edge in (min, max))
        return f"{middle} ({low} … {high})"

    def over(self, other: Figure) -> Figure:
        """The ratio, round by round where both have the same rounds, else of the medians."""
        if len(self.values) == len(other.values):
            return Figure.of(mine / theirs for mine, theirs in zip(self.values, other.values, strict=True))
        return Figure.of([self.median / other.median] if self.values and other.values else [])


@dataclass
class Report:
    """What one benchmark found."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    verdict: str = ""
    """The last line: the ratio against the peer, and what was wanted."""
    figures: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Everything measured, in seconds, per second, or as a ratio."""
    settings: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    load: tuple[float, float] = (0.0, 0.0)
    """Of the machine, before and after; a quiet machine begins near 0."""

    def keep(self, name: str, figure: Figure) -> Figure:
        self.figures[name] = figure.values
        return figure

    def show(self, console: Console) -> None:
        table = Table(title=self.title, title_justify="left")
        for number, column in enumerate(self.columns):
            table.add_column(column, justify="left" if number == 0 else "right")
        for row in self.rows:
            table.add_row(*row)
        console.print(table)
        for note in self.notes:
            console.print(note, style="dim")
        console.print(f"{self.name}: {self.verdict}", style="bold")

    def markdown(self) -> str:
        """The same for a document."""
        head = [f"### {self.name}: {self.title}", ""]
        lines = [self.columns, tuple("---" for _ in self.columns), *self.rows]
        table = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
        notes = [line for note in self.notes for line in ("", note)]
        load = f"{self.load[0]:.1f} before, {self.load[1]:.1f} after"
        command = f"`python -m benchmarks.{self.name}`, {self.seconds:.0f} s, load average {load}."
        return "\n".join([*head, *table, *notes, "", f"**{self.verdict}**", "", command, ""])

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "machine": machine(), "versions": versions()}


def machine() -> dict[str, Any]:
    """Where this ran."""
    model = next(
        (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), ""
    )
    memory = next(
        (int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**20, 1),
        "system": platform.platform(),
    }


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def must_be_clean(verdict: Verdict, what: str) -> None:
    """Speed counts only for a job that read every record once and lost no step."""
    if not verdict.clean:
        raise BenchmarkFailed(f"{what}: the audit is not clean, so its time means nothing: {verdict}")


Measure = Callable[[argparse.Namespace, Path], Report]


def run(
    measure: Measure, flags: Callable[[argparse.ArgumentParser], None], argv: Sequence[str] | None = None
) -> int:
    """The command of one benchmark."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {measure.__module__ if measure.__module__ != '__main__' else _program()}",
        description=sys.modules[measure.__module__].__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, help="write everything measured to this file")
    flags(parser)
    settings = parser.parse_args(argv)
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    try:
        with ends_like_an_interrupt():
            report = measured(measure, settings)
    except (BenchmarkFailed, AssertionError) as error:  # the harness of our jobs asserts
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    if settings.json:
        settings.json.parent.mkdir(parents=True, exist_ok=True)
        settings.json.write_text(json.dumps(report.as_json(), indent=2, default=str) + "\n")
    report.show(console)
    return 0


@contextmanager
def ends_like_an_interrupt() -> Iterator[None]:
    """SIGTERM unwinds this process, too, so that no job that it started outlives it."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def measured(measure: Measure, settings: argparse.Namespace) -> Report:
    """Run one benchmark in a directory of its own, and note what the machine was doing meanwhile."""
    began, load = clock.now(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="elasticdl-bench-") as name:
        report = measure(settings, Path(name))
    report.seconds = clock.now() - began
    report.load = (load, os.getloadavg()[0])
    report.settings = {k: v for k, v in vars(settings).items() if k != "json"}
    return report


def _program() -> str:
    spec = sys.modules["__main__"].__spec__
    return spec.name if spec is not None else "benchmarks"


@contextmanager
def said(text: str) -> Any:
    """Tell on stderr what is measured now: these runs take minutes."""
    began = clock.now()
    print(f"  {text} …", file=sys.stderr, flush=True)
    yield
    print(f"  {text}: {clock.now() - began:.1f} s", file=sys.stderr, flush=True)
