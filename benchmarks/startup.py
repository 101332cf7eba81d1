"""From the command to the first step, and from a newcomer's start to its being ready.

    python -m benchmarks.startup [--rounds 2] [--json FILE]

Two workers and the small model. Peers: static horovodrun with the same model, and plain Keras in one process.
Ours must import, build and trace before it says that it is ready; a newcomer does so while the others train.
"""

from __future__ import annotations

import argparse
import itertools
import re
import signal
from datetime import datetime
from pathlib import Path

from benchmarks import frame
from benchmarks.contestants import (
    HOROVODRUN,
    our_job,
    peer,
    peer_environment,
    peers_run_on,
    program,
    stop,
    threads_of,
    write_records,
)
from benchmarks.frame import Figure, Report, said
from benchmarks.marks import read_marks
from edl_allreduce import clock
from edl_allreduce.testing.jobs import RunningJob

WORKERS = 2
BATCH = 64
OURS, NEWCOMER = "ours: elasticdl train", "ours: newcomer, start to ready"
STATIC, PLAIN = "static horovodrun", "plain Keras, one process"
PHASES = ("master starts", "worker process starts", "imports TensorFlow", "prepares", "first ring and step")
_LINE = r"^(\d{{4}}-\S+ \S+) \S+ \[worker \d+\] {}"


def main(argv: list[str] | None = None) -> int:
    return frame.run(measure, flags, argv)


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=2)


def measure(settings: argparse.Namespace, directory: Path) -> Report:
    data = write_records(directory / "data", 100 * WORKERS * BATCH)
    seconds: dict[str, list[float]] = {OURS: [], STATIC: [], PLAIN: [], NEWCOMER: []}
    phases: list[tuple[float, ...]] = []
    for round_ in range(settings.rounds):
        with said(f"round {round_ + 1}: ours"):
            first, newcomer, parts = _ours(directory / f"ours-{round_}", data)
        seconds[OURS].append(first)
        seconds[NEWCOMER].append(newcomer)
        phases.append(parts)
        for name in (STATIC, PLAIN):
            with said(f"round {round_ + 1}: {name}"):
                seconds[name].append(_theirs(name, directory / f"{name.split()[0]}-{round_}", data))
    return _report(seconds, phases)


def _ours(where: Path, data: Path) -> tuple[float, float, tuple[float, ...]]:
    """First step, newcomer's preparation, and the phases of the first step's worker."""
    began = clock.wall()
    with our_job(
        where, "mlp", data, num_workers=WORKERS, minibatch_size=BATCH, num_epochs=10**9, log_loss_steps=1
    ) as job:
        job.wait_for("plan")
        first = _first_step(job)
        job.signal(0, signal.SIGKILL)
        launched = job.wait_for("launch", f"worker {WORKERS}")
        ready = job.wait_for("ready", f"worker {WORKERS}")
        job.wait_for("re-form")
        stop(job)
        launch = next(e.wall for e in job.events() if e.kind == "launch")
        started, _ = _moment(job, "worker 0 ")
        prepared, text = _moment(job, "ready after ")
    imported = prepared - float(text.split()[0])  # the line tells how long it took after the imports
    moments = [began, launch, started, imported, prepared, first]
    parts = tuple(later - earlier for earlier, later in itertools.pairwise(moments))
    return first - began, ready.wall - launched.wall, parts


def _first_step(job: RunningJob) -> float:
    pattern = re.compile(_LINE.format(r"Loss = .* steps = 1$"), re.MULTILINE)

    def find() -> float | None:
        found = pattern.search(job.log(0))
        return _wall(found.group(1)) if found else None

    return job._until(find, "the first step", 120.0)


def _moment(job: RunningJob, words: str) -> tuple[float, str]:
    """When worker 0 wrote the line that begins with these words, and the rest of it."""
    found = re.search(_LINE.format(re.escape(words)) + r"(.*)$", job.log(0), re.MULTILINE)
    if found is None:
        raise frame.BenchmarkFailed(f"worker 0 never wrote {words!r}\n{job.story()}")
    return _wall(found.group(1)), found.group(2)


def _wall(text: str) -> float:
    return datetime.fromisoformat(text.replace(",", ".")).timestamp()


def _theirs(name: str, where: Path, data: Path) -> float:
    workers = WORKERS if name == STATIC else 1
    ranks = program(
        "static" if name == STATIC else "plain", model="mlp", data=data, batch=BATCH * WORKERS // workers,
        steps=3, marks=where / "marks", threads=threads_of(workers),
    )  # fmt: skip
    launcher = [*HOROVODRUN, "-np", str(workers)] if name == STATIC else []
    began = clock.now()
    with peer(where, [*launcher, *ranks], peer_environment()) as running:
        running.wait()
        return max(marks[0].now for marks in read_marks(running.marks).values()) - began


def _report(seconds: dict[str, list[float]], phases: list[tuple[float, ...]]) -> Report:
    report = Report(
        "startup",
        f"seconds to the first step, {WORKERS} workers, small model",
        ("", "seconds", "ours / this"),
        notes=[peers_run_on()],
    )
    mine = Figure.of(seconds[OURS])
    for name, values in seconds.items():
        figure = report.keep(name, Figure.of(values))
        beside = f"{mine.over(figure).median:.2f}" if name in (STATIC, PLAIN) else ""
        report.rows.append((name, figure.text("{:.1f}"), beside))
    for name, parts in zip(PHASES, zip(*phases, strict=True), strict=True):
        report.rows.append((f"of ours: {name}", report.keep(name, Figure.of(parts)).text("{:.1f}"), ""))
    ratio = report.keep("ratio", mine.over(Figure.of(seconds[STATIC])))
    newcomer = Figure.of(seconds[NEWCOMER]).median
    report.verdict = f"ours / {STATIC} = {ratio.text()}; a newcomer is ready after {newcomer:.1f} s"
    return report


if __name__ == "__main__":
    raise SystemExit(main())
