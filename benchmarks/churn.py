"""Goodput while a worker is killed every 20 s and replaced, over Horovod Elastic with the same schedule.

    python -m benchmarks.churn [--seconds 300] [--every 20] [--workers 3] [--standby 1] [--no_peer]

Goodput is the records of steps that count, per second: a step that is made again counts once. Each side first
trains undisturbed, then for --seconds with a SIGKILL every --every seconds; its share is the second figure
over its own first one, so that a loaded machine hits both alike. The same small model, a batch of 64 for each
worker, commits every step at the peer's.

- ours: the eldest member is killed, which is rank 0. Once without and once with workers that stand by.
- Horovod Elastic: the newest rank is killed, which spares its coordinator, and its discovery script names
  another host at once, since it starts no rank again where one died.
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks import frame
from benchmarks.contestants import (
    Hosts,
    Peer,
    our_job,
    our_steps,
    peer,
    peer_environment,
    peers_run_on,
    program,
    reforms,
    stop,
    threads_of,
    write_records,
)
from benchmarks.frame import BenchmarkFailed, Figure, Report, said
from benchmarks.marks import Mark, read_marks
from edl_allreduce import clock
from edl_allreduce.testing.jobs import RunningJob

MODEL = "mlp"
BATCH = 64
FOREVER = 10**9
STALL_SECONDS = 120.0
HOROVOD_ELASTIC = "Horovod Elastic"
LOG_STEPS = 5


@dataclass(frozen=True)
class Run:
    """Records per second of one side."""

    undisturbed: float
    churned: float
    kills: int
    paused: float | None = None
    """Seconds for which the slowest survivor of each kill stood still, together; ours only."""

    @property
    def share(self) -> float:
        return self.churned / self.undisturbed


def main(argv: list[str] | None = None) -> int:
    return frame.run(measure, flags, argv)


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=300.0, help="with kills")
    parser.add_argument("--every", type=float, default=20.0, help="seconds between two kills")
    parser.add_argument("--undisturbed", type=float, default=20.0, help="seconds without kills, before them")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--standby", type=int, default=1)
    parser.add_argument("--no_peer", action="store_true", help="only ours")


def measure(settings: argparse.Namespace, directory: Path) -> Report:
    data = write_records(directory / "data", 200 * BATCH)
    runs: dict[str, Run] = {}
    for standby in sorted({0, settings.standby}):
        name = f"ours, --standby={standby}" if standby else "ours"
        with said(name):
            runs[name] = _ours(settings, directory / f"ours-{standby}", data, standby)
    if not settings.no_peer:
        with said(HOROVOD_ELASTIC):
            runs[HOROVOD_ELASTIC] = _theirs(settings, directory / "elastic", data)
    title = f"records/s of {settings.workers} workers, a kill every {settings.every:.0f} s"
    columns = ("", "undisturbed", "with kills", "share", "kills", "pauses, s")
    report = Report("churn", title, columns, notes=[] if settings.no_peer else [peers_run_on()])
    for name, run in runs.items():
        report.keep(f"{name}, undisturbed", Figure.of([run.undisturbed]))
        report.keep(f"{name}, with kills", Figure.of([run.churned]))
        share = report.keep(f"{name}, share", Figure.of([run.share]))
        paused = frame.NOTHING if run.paused is None else f"{run.paused:.2f}"
        rates = f"{run.undisturbed:.0f}", f"{run.churned:.0f}"
        report.rows.append((name, *rates, share.text(), str(run.kills), paused))
    ours = next(iter(runs.values()))
    report.verdict = f"ours keeps {ours.share:.2f} of its undisturbed goodput"
    if HOROVOD_ELASTIC in runs:
        theirs = runs[HOROVOD_ELASTIC]
        ratio = ours.churned / theirs.churned if theirs.churned else float("inf")
        report.verdict += (
            f", {HOROVOD_ELASTIC} {theirs.share:.2f}; records/s with kills {ratio:.2f} of the peer's, "
            "wanted ≥ 1.5"
        )
    return report


def with_kills(settings: argparse.Namespace, kill: Callable[[], bool]) -> tuple[float, float, float, int]:
    """Let it train, then kill one again and again: when each part began, the end, and how many were killed.
    `kill` says whether there was anybody to kill."""
    began = clock.wall()
    clock.sleep(settings.undisturbed)
    first, kills, tries = clock.wall(), 0, 0
    while clock.wall() < first + settings.seconds:
        kills += kill()
        tries += 1
        clock.sleep(max(0.0, min(first + tries * settings.every, first + settings.seconds) - clock.wall()))
    return began, first, clock.wall(), kills


# --------------------------------------------------------------------------------------------------- ours


def _ours(settings: argparse.Namespace, where: Path, data: Path, standby: int) -> Run:
    numbers = {"num_workers": settings.workers, "standby": standby, "minibatch_size": BATCH}
    more = {"num_epochs": FOREVER, "log_loss_steps": LOG_STEPS, "threads_per_worker": _threads(settings)}
    with our_job(where, MODEL, data, **numbers, **more) as job:
        job.wait_for("plan")
        if standby:
            job.wait_for("ready", "stands by", again=True)
        _wait_for_steps(job)
        before = len(reforms(job))
        began, first, ended, kills = with_kills(settings, lambda: _kill_eldest(job))
        paused = _paused(job, before)
        steps = _all_steps(job)
        stop(job)
    size = settings.workers * BATCH  # of a step, whatever the number of workers
    return Run(size * _pace(steps, began, first), size * _pace(steps, first, ended), kills, paused)


def _threads(settings: argparse.Namespace) -> int:
    return threads_of(settings.workers)


def _kill_eldest(job: RunningJob) -> bool:
    """The first of the newest ring; False when it has ended already, and nobody noticed yet."""
    members = [e.event["workers"] for e in job.events() if e.kind == "plan"][-1]
    gone = {e.event["worker_id"] for e in job.events() if e.kind == "exit"}
    eldest = next((member for member in members if member not in gone), None)
    if eldest is None:
        raise BenchmarkFailed(f"nobody trains\n{job.story()}")
    try:
        job.signal(eldest, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _wait_for_steps(job: RunningJob) -> None:
    for _ in clock.polls(0.2, within=STALL_SECONDS):
        if len(_all_steps(job)) > 2:
            return
    raise BenchmarkFailed(f"no steps within {STALL_SECONDS:.0f} s\n{job.story()}")


def _all_steps(job: RunningJob) -> list[tuple[float, int]]:
    """When which step ended, whoever of the workers that came and went wrote it."""
    logs = (job.job_dir / "logs").glob("worker-*.log")
    return sorted(found for log in logs for found in our_steps(job, int(log.stem.split("-")[1])))


def _pace(steps: Iterable[tuple[float, int]], began: float, ended: float) -> float:
    """Steps per second in this time. No step is lost, so the furthest says how many there were."""
    reached = {when: step for when, step in steps}
    before = max((step for when, step in reached.items() if when <= began), default=0)
    return (max((step for when, step in reached.items() if when <= ended), default=0) - before) / (
        ended - began
    )


def _paused(job: RunningJob, before: int) -> float:
    slowest: dict[int, float] = {}
    for one in reforms(job)[before:]:
        slowest[one.generation] = max(one.pause, slowest.get(one.generation, 0.0))
    return sum(slowest.values())


# ------------------------------------------------------------------------------------------------ the peer


def host_names() -> list[str]:
    """All of them this machine, each a host of its own for Horovod Elastic."""
    return [f"127.{'0' * i}.{'0' * j}.1" for i in range(1, 9) for j in range(1, 9)]


def _theirs(settings: argparse.Namespace, where: Path, data: Path) -> Run:
    names = host_names()
    hosts = Hosts(where, names[: settings.workers])
    ranks = program(
        "elastic", model=MODEL, data=data, batch=BATCH, steps=FOREVER, marks=where / "marks",
        threads=_threads(settings), commit_every=1,
    )  # fmt: skip
    count = settings.workers
    with peer(where, [*hosts.launcher(count), *ranks], peer_environment()) as running:
        if not running.until(lambda: _training(running, count), STALL_SECONDS):
            raise BenchmarkFailed(f"{running.story()}\n{HOROVOD_ELASTIC} did not begin")

        def kill() -> bool:
            nonlocal count
            if not _kill_newest(running):
                return False
            count += 1
            hosts.are(names[:count])
            return True

        offset = clock.wall() - clock.now()
        began, first, ended, kills = with_kills(settings, kill)
        marks = read_marks(running.marks)
    done = _finished(marks.values())
    first_rate = _records(done, began - offset, first - offset) / (first - began)
    return Run(first_rate, _records(done, first - offset, ended - offset) / (ended - first), kills)


def _training(running: Peer, size: int) -> bool:
    lasts = [marks[-1] for marks in read_marks(running.marks).values() if marks]
    return sum(last.size == size for last in lasts) >= size


def _kill_newest(running: Peer) -> bool:
    """The last that began among those that live; False when there is nobody but the coordinator."""
    marks = {pid: m for pid, m in read_marks(running.marks).items() if m and Path(f"/proc/{pid}").exists()}
    if len(marks) < 2:
        return False
    os.kill(max(marks, key=lambda pid: marks[pid][0].now), signal.SIGKILL)
    return True


def _finished(sides: Iterable[Iterable[Mark]]) -> dict[int, Mark]:
    """By its number: the first time that a step was over. One that is made again counts once."""
    found: dict[int, Mark] = {}
    for marks in sides:
        for mark in marks:
            known = found.get(mark.step)
            if known is None or mark.now < known.now:
                found[mark.step] = mark
    return found


def _records(done: dict[int, Mark], began: float, ended: float) -> float:
    return float(sum(BATCH * mark.size for mark in done.values() if began < mark.now <= ended))


if __name__ == "__main__":
    raise SystemExit(main())
