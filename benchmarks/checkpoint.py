"""How long does a checkpoint hold training up, and how long does one copy of the weights take?

    python -m benchmarks.checkpoint [--rounds 1] [--model wide] [--steps 60] [--every 12] [--json FILE]

Ours is a whole elastic job of two workers: rank 0 copies model and optimizer between two steps, a thread
writes the copy with checksums and fsync while training goes on. The peer is Keras' own loop in one process
that calls `model.save` between two steps. The stall is how much longer the step after a checkpoint took
than steps that no checkpoint touches, so without an idle core it holds some of the writing, too; what the
writing thread takes from later steps is counted in "lost in all". The copy beside it is one into new
memory.
"""

from __future__ import annotations

import argparse
import itertools
import re
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks import frame
from benchmarks.contestants import (
    finish,
    our_job,
    our_steps,
    peer,
    peer_environment,
    program,
    threads_of,
    write_records,
)
from benchmarks.frame import Figure, Report, said
from benchmarks.marks import read_marks
from edl_allreduce import clock
from edl_allreduce.worker.checkpoint import shelf

WORKERS = 2
BATCH = 16
"""Of each worker."""
COPIES = 5
OURS, KERAS, COPY = "ours", "Keras, model.save in the loop", "one copy of model and optimizer"
HELD = "of ours: before the next step"
_HELD = re.compile(r"a checkpoint held training for ([\d.]+) ms")


def main(argv: list[str] | None = None) -> int:
    return frame.run(measure, flags, argv)


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--model", default="wide")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=12, help="steps between two checkpoints")


def measure(settings: argparse.Namespace, directory: Path) -> Report:
    data = write_records(directory / "data", (settings.steps + 1) * WORKERS * BATCH)
    stalls: dict[str, list[float]] = {OURS: [], HELD: [], KERAS: [], COPY: []}
    lost: dict[str, list[float]] = {OURS: [], KERAS: []}
    size = 0
    for round_ in range(settings.rounds):
        with said(f"round {round_ + 1}: ours"):
            where = directory / f"ours-{round_}"
            ends, held = _ours(where, settings, data)
            size, copied = _one_copy(where / "checkpoints")
        stalls[COPY].append(copied)
        stalls[HELD].append(held)
        _judge(OURS, ends, settings.every, stalls, lost)
        with said(f"round {round_ + 1}: {KERAS}"):
            ends = _keras(directory / f"keras-{round_}", settings, data)
        _judge(KERAS, ends, settings.every, stalls, lost)
    return _report(stalls, lost, size)


def _ours(where: Path, settings: argparse.Namespace, data: Path) -> tuple[list[float], float]:
    """The ends of its steps, and how long it was held before the next one."""
    with our_job(
        where, settings.model, data, num_workers=WORKERS, minibatch_size=BATCH, max_step=settings.steps,
        log_loss_steps=1, checkpoint_dir=where / "checkpoints", checkpoint_steps=settings.every,
    ) as job:  # fmt: skip
        finish(job)
        held = [float(ms) / 1000 for ms in _HELD.findall(job.log(0))]
        return [when for when, _ in our_steps(job, worker=0)], statistics.median(held)


def _keras(where: Path, settings: argparse.Namespace, data: Path) -> list[float]:
    command = program(
        "saving", model=settings.model, data=data, batch=BATCH * WORKERS, steps=settings.steps,
        threads=threads_of(1), marks=where / "marks", every=settings.every, saved=where / "saved.keras",
    )  # fmt: skip
    with peer(where, command, peer_environment()) as running:
        running.wait()
        (marks,) = read_marks(running.marks).values()
        return [mark.now for mark in marks]


def _one_copy(checkpoints: Path) -> tuple[int, float]:
    """Bytes of a checkpoint's arrays, and the time to copy them into new memory."""
    kept, _ = shelf.newest(shelf.DiskShelf(checkpoints))
    assert kept is not None, "the job wrote a checkpoint when it ended"
    times = []
    for _ in range(COPIES):  # the first one also waits for memory that this process never had
        began = clock.now()
        copies = [array.copy() for array in kept.arrays]
        times.append(clock.now() - began)
    return sum(array.nbytes for array in copies), statistics.median(times)


def stall_and_loss(ends: Sequence[float], every: int) -> tuple[float, float]:
    """From the ends of the steps 1, 2, …: the stall of a checkpoint, and all time lost to one; medians."""
    took = {step: later - end for step, (end, later) in enumerate(itertools.pairwise(ends), 1)}
    untouched = statistics.median(t for step, t in took.items() if step % every > every // 2)
    due = [step for step in took if step % every == 0]
    stalls = [took[step] - untouched for step in due]
    after = [sum(took.get(step + i, untouched) - untouched for i in range(every)) for step in due]
    return max(0.0, statistics.median(stalls)), max(0.0, statistics.median(after))


def _judge(
    name: str, ends: Sequence[float], every: int, stalls: dict[str, list[float]], lost: dict[str, list[float]]
) -> None:
    stall, loss = stall_and_loss(ends, every)
    stalls[name].append(stall)
    lost[name].append(loss)


def _report(stalls: dict[str, list[float]], lost: dict[str, list[float]], size: int) -> Report:
    report = Report(
        "checkpoint",
        f"what a checkpoint of {size / 1e6:.0f} MB costs training",
        ("", "stall, ms", "lost in all, ms", "/ one copy"),
    )
    copy = Figure.of(stalls[COPY])
    for name, values in stalls.items():
        stall = report.keep(f"{name}, stall s", Figure.of(values))
        loss = report.keep(f"{name}, lost s", Figure.of(lost[name])) if name in lost else Figure.of([])
        ratio = report.keep(f"{name}, ratio", stall.over(copy))
        form = ("{:.0f}", 1000.0)
        report.rows.append((name, stall.text(*form), loss.text(*form), f"{ratio.median:.2f}"))
    ours = Figure.of(report.figures[f"{OURS}, ratio"])
    beside = Figure.of(stalls[OURS]).over(Figure.of(stalls[KERAS]))
    held = Figure.of(report.figures[f"{HELD}, ratio"])
    report.verdict = (
        f"stall / one copy = {ours.text()}, wanted about 1 (before the next step: {held.text()}); "
        f"stall / Keras' = {beside.median:.3f}"
    )
    return report


if __name__ == "__main__":
    raise SystemExit(main())
