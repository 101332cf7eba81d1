"""What it costs to see a job: steps per second while somebody looks, over those while nobody does.

    python -m benchmarks.seeing [--rounds 10] [--seconds 4] [--model mlp] [--viewers 1] [--json FILE]

One job, and windows of time in turn, so that whatever else the machine does hits both kinds alike. In a
window that is seen the page's live updates are read and /metrics is scraped every second, as by a browser and
a Prometheus. Curves for TensorBoard are written in both kinds. What cannot be switched off, a worker's ledger
of its own time, is measured by itself and compared with the time of a step.
"""

from __future__ import annotations

import argparse
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import frame
from benchmarks.contestants import our_job, our_steps, stop, write_records
from benchmarks.frame import BenchmarkFailed, Figure, Report, said
from edl_allreduce import clock
from edl_allreduce.cluster.registry import LocalJobFiles
from edl_allreduce.testing.jobs import RunningJob
from edl_allreduce.web.guard import page_token
from edl_allreduce.worker.loop.orders import Progress
from edl_allreduce.worker.loop.pace import Pace

WORKERS = 2
BATCH = 64
SCRAPE_SECONDS = 1.0
WARM_UP_STEPS = 200
LEDGER_STEPS = 4_000
LEDGER_TRIES = 5
"""Of which the quickest counts: what slows a loop of a few microseconds is something else."""
RANKS = 64
"""Whose times a step brings."""
SEEN, UNSEEN = "page open, metrics scraped", "nobody looks"


def main(argv: list[str] | None = None) -> int:
    return frame.run(measure, flags, argv)


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=10, help="pairs of windows")
    parser.add_argument("--seconds", type=float, default=4.0, help="of one window")
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--viewers", type=int, default=1, help="pages that are open")


def measure(settings: argparse.Namespace, directory: Path) -> Report:
    data = write_records(directory / "data", 150 * WORKERS * BATCH)
    windows: dict[str, list[tuple[float, float]]] = {SEEN: [], UNSEEN: []}
    numbers = {"num_workers": WORKERS, "minibatch_size": BATCH, "num_epochs": 100_000, "log_loss_steps": 10}
    where = directory / "seen"
    more = {"tensorboard_log_dir": directory / "curves", "dashboard_port": "auto"}
    with our_job(where, settings.model, data, **numbers, **more) as job:
        _wait_for_step(job, WARM_UP_STEPS)
        for round_ in range(settings.rounds):
            order = (SEEN, UNSEEN) if round_ % 2 else (UNSEEN, SEEN)
            with said(f"round {round_ + 1}"):
                for kind in order:
                    viewers = settings.viewers if kind == SEEN else 0
                    with looking(job, viewers):
                        began = clock.wall()
                        clock.sleep(settings.seconds)
                        windows[kind].append((began, clock.wall()))
        steps = our_steps(job, worker=0)
        stop(job)
    paces = {kind: Figure.of(_pace(steps, *window) for window in found) for kind, found in windows.items()}
    return _report(settings, paces)


def _report(settings: argparse.Namespace, paces: dict[str, Figure]) -> Report:
    report = Report(
        "seeing",
        f"steps/s of {settings.model}, {WORKERS} workers, while {settings.viewers} look",
        ("", "steps/s", "seen / this"),
    )
    ratio = paces[SEEN].over(paces[UNSEEN])
    report.keep("ratio", ratio)
    for kind, figure in paces.items():
        report.keep(kind, figure)
        report.rows.append((kind, figure.text("{:.1f}"), "" if kind == SEEN else ratio.text("{:.3f}")))
    own = report.keep("ledger, seconds per step", Figure.of([ledger_seconds()]))
    share = own.median * paces[UNSEEN].median
    report.keep("ledger, share of a step", Figure.of([share]))
    report.rows.append(("a worker's ledger", f"{own.median * 1e6:.1f} µs per step", f"{share:.2%} of it"))
    report.verdict = (
        f"seen / unseen = {ratio.median:.3f}, the ledger takes {share:.2%} of a step; wanted ≥ 0.99 and < 1 %"
    )
    return report


def ledger_seconds() -> float:
    """What a step pays for the worker's ledger and its times, in a ring of many."""
    return min(_ledger_seconds(Pace(Progress())) for _ in range(LEDGER_TRIES))


def _ledger_seconds(pace: Pace) -> float:
    computed = tuple(0.001 * rank for rank in range(RANKS))
    began = clock.now()
    for _ in range(LEDGER_STEPS):
        pace.begins()
        pace.takes()
        pace.has_taken()
        pace.meets()
        pace.applied(computed, None)
        pace.over()
    return (clock.now() - began) / LEDGER_STEPS


def _pace(steps: list[tuple[float, int]], began: float, ended: float) -> float:
    """Steps per second between the first and the last line of a log within these times."""
    within = [(when, step) for when, step in steps if began <= when <= ended]
    if len(within) < 3:
        raise BenchmarkFailed(f"only {len(within)} lines of progress in {ended - began:.1f} s; use --seconds")
    (first, low), (last, high) = within[0], within[-1]
    return (high - low) / (last - first)


def _wait_for_step(job: RunningJob, step: int) -> None:
    for _ in clock.polls(0.2, within=300):
        if (job.job_dir / "logs" / "worker-0.log").exists() and any(s >= step for _, s in our_steps(job, 0)):
            return
        if job.process.poll() is not None:
            break
    raise BenchmarkFailed(f"the job made no {step} steps\n{job.story()}")


# --------------------------------------------------------------------------------------------------- looking


@contextmanager
def looking(job: RunningJob, viewers: int) -> Iterator[None]:
    """So many pages are open meanwhile, and a monitor scrapes; nobody where there are no viewers."""
    over = threading.Event()
    page, token = _page_of(job)
    threads = [threading.Thread(target=_view, args=(page, token, over)) for _ in range(viewers)]
    if viewers:
        threads.append(threading.Thread(target=_scrape, args=(page, over)))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _page_of(job: RunningJob) -> tuple[str, str]:
    address = LocalJobFiles(job.job_dir).running()
    if address is None or not address.page:
        raise BenchmarkFailed(f"the job has no page\n{job.story()}")
    return address.page, page_token(address.token)


def _view(page: str, token: str, over: threading.Event) -> None:
    """As a browser reads live updates."""
    request = urllib.request.Request(
        f"http://{page}/api/updates", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request, timeout=30) as updates:
        while not over.is_set() and updates.readline():
            pass


def _scrape(page: str, over: threading.Event) -> None:
    while not over.is_set():
        with urllib.request.urlopen(f"http://{page}/metrics", timeout=30) as answer:
            answer.read()
        over.wait(SCRAPE_SECONDS)


if __name__ == "__main__":
    raise SystemExit(main())
