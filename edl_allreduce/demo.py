"""`make demo`: real digits, three workers, and things that happen to them while they train."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
from rich.table import Table

from edl_allreduce import clock, outside
from edl_allreduce.contract import EXIT_FAILED, EXIT_INTERRUPTED
from edl_allreduce.core.health import Activity
from edl_allreduce.core.job.lifecycle import Phase
from edl_allreduce.core.job.state import Result
from edl_allreduce.core.status import JobStatus
from edl_allreduce.master.display import can_draw
from edl_allreduce.master.local import LocalJob, configure_logging
from edl_allreduce.spec import parse_job
from edl_allreduce.worker.loop.diary import audit

WORKERS = 3
MINIBATCH = 32
EPOCHS = 20_000
"""More than needed: the demo ends when everything has happened."""
TEST_RECORDS = 360
LOOK_SECONDS = 0.1
TRAINING = (Activity.COMPUTING, Activity.REDUCING)

SETTLED_STEPS = 100
"""Steps between two things that happen."""
OVER = "everything has happened"


def main() -> int:
    """Train, disturb, report."""
    zoo = Path(__file__).resolve().parents[1] / "model_zoo"
    if not zoo.is_dir():
        print(f"The demo needs the model zoo of the repository, and {zoo} is not there.", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="elasticdl-demo-") as name:
        folder = Path(name)
        write_digits(folder)
        argv = [
            "--job_name=demo", f"--job_dir={folder / 'job'}", f"--model_zoo={zoo}",
            "--model_def=digits.cnn.custom_model", f"--training_data={folder / 'train'}",
            f"--num_workers={WORKERS}", f"--minibatch_size={MINIBATCH}", f"--num_epochs={EPOCHS}",
            f"--audit_dir={folder / 'audit'}", f"--output={folder / 'model'}",
            # What dies here is noticed at once; a busy machine is no failure.
            "--failure_detection_seconds=20", "--cool_down_seconds=20",
            f"--report={zoo.parent / 'build' / 'demo-report.html'}",
        ]  # fmt: skip
        spec = parse_job("train", argv).spec
        (folder / "job").mkdir()
        configure_logging(spec, folder / "job" / "master.log", to_terminal=not can_draw(outside.console()))
        print("elasticdl train " + " ".join(argv))
        began = clock.now()
        local = LocalJob(spec, judge=lambda directory: str(audit(directory)))
        result = asyncio.run(_play(local))
        seconds = clock.now() - began
        if result.phase is not Phase.SUCCEEDED and result.reason != OVER:
            print(f"{result.phase.value}: {outside.story(result.reason)}", file=sys.stderr)
            return EXIT_INTERRUPTED if result.phase is Phase.STOPPED else EXIT_FAILED
        code = report(result, folder, seconds)
        print(f"Report          {local.report}")
        print(
            f"Page            http://{local.page} while it trained; `elasticdl dashboard` opens that of a job"
        )
        return code


def write_digits(folder: Path) -> None:
    """scikit-learn brings 1,797 scanned digits; a fifth is kept for the test."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    cut = len(x) - TEST_RECORDS
    for part, rows in {"train": slice(cut), "test": slice(cut, None)}.items():
        (folder / part).mkdir()
        np.save(folder / part / "x.npy", x[rows].astype("float32"))
        np.save(folder / part / "y.npy", y[rows].astype("int64"))


async def _play(local: LocalJob) -> Result:
    disturbance = asyncio.create_task(_disturb(local))
    try:
        result = await local.run()
    finally:
        disturbance.cancel()
    with suppress(asyncio.CancelledError):
        await disturbance  # raises what went wrong with it
    return result


async def _disturb(local: LocalJob) -> None:
    """Kill one, drain one, add one; each time wait until the ring is whole again."""
    status = await _whole(local, WORKERS)
    try:
        os.kill(_pid_of_rank(status, 1), signal.SIGKILL)
        status = await _whole(local, WORKERS, after=status)
        os.kill(_pid_of_rank(status, 0), signal.SIGTERM)
        status = await _whole(local, WORKERS, after=status)
        local.job.scale(WORKERS + 1)
        await _whole(local, WORKERS + 1, after=status)
    finally:
        local.job.stop(OVER)


def _pid_of_rank(status: JobStatus, rank: int) -> int:
    return next(w.pid for w in status.workers if w.rank == rank)


async def _whole(local: LocalJob, size: int, after: JobStatus | None = None) -> JobStatus:
    """Until a later ring of `size` trains, and has trained for a while."""
    generation = after.generation if after is not None else 0
    first: int | None = None
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        if not hasattr(local, "job"):
            continue
        status = local.job.status()
        ring = [w for w in status.workers if w.rank >= 0 and w.pid and w.activity in TRAINING]
        if len(ring) != size or status.generation <= generation:
            first = None
            continue
        first = status.step if first is None else first
        if status.step >= first + SETTLED_STEPS:
            return status


def what_happened(result: Result) -> Table:
    """Every generation with its reason and its pause."""
    table = Table(title="What happened, and how long the survivors paused", title_justify="left")
    for column in ("generation", "because", "ring", "pause", "notice", "plan", "join", "sync", "first step"):
        if column == "because":
            table.add_column(column, min_width=30)
        else:
            table.add_column(column, justify="right")
    for generation, reason in result.reasons.items():
        reforms = [r for r in result.reforms if r.generation == generation]
        if not reforms:
            table.add_row(str(generation), outside.line(reason))
            continue
        slowest = max(reforms, key=lambda r: r.pause)
        phases = (slowest.notice, slowest.plan, slowest.join, slowest.sync, slowest.first_step)
        table.add_row(
            str(generation), outside.line(reason), str(slowest.size), f"{slowest.pause * 1000:.0f} ms",
            *(f"{phase * 1000:.0f}" for phase in phases),
        )  # fmt: skip
    return table


def report(result: Result, folder: Path, seconds: float) -> int:
    """What came of it; the exit code says whether every promise was kept."""
    console = outside.console()
    verdict = audit(str(folder / "audit"))
    correct, count = test_accuracy(folder)
    console.print(what_happened(result))
    console.print(f"Steps           {result.step} in {seconds:.0f} s, none lost")
    console.print(
        f"Test accuracy   {correct / count:.1%} ({correct} of {count} digits never seen in training)"
    )
    console.print(f"Audit           {outside.line(verdict)}", style="green" if verdict.clean else "red")
    for problem in verdict.problems:
        console.print(f"  {outside.line(problem)}", style="red")
    return 0 if verdict.clean else 1


def test_accuracy(folder: Path) -> tuple[int, int]:
    """Of the model that the job wrote, on the digits that were kept back."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import keras

    model = keras.saving.load_model(folder / "model" / "model.keras")
    x, y = np.load(folder / "test" / "x.npy"), np.load(folder / "test" / "y.npy")
    predicted = np.argmax(model.predict(x / 16.0, verbose=0), axis=1)
    return int(np.sum(predicted == y)), len(y)


if __name__ == "__main__":
    sys.exit(main())
