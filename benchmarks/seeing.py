"""What it costs to see a job: its steps while somebody looks, over those while nobody does.

    python -m benchmarks.seeing [--rounds 10] [--seconds 4] [--model mlp] [--viewers 1] [--json FILE]

One job, and windows of time in turn, so that whatever else the machine does hits both kinds alike. In a
window that is seen the page is open in a real browser (Debian's Chromium, installed where that is possible;
else its live updates are read as a browser would) and /metrics is scraped every second. Curves for
TensorBoard are written in both kinds.

Steps per second count what the browser itself takes of this machine's cores, too, and on a machine that
others use they say little. So the processor's time is read as well: of workers per step, and of the master
per second, which is where looking costs. The cost is what the master takes more while it is seen, of all
that the job takes. What cannot be switched off, a worker's ledger of its own time, is measured by itself
and compared with a step.
"""

from __future__ import annotations

import argparse
import os
import shutil
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import frame
from benchmarks.contestants import our_job, our_steps, stop, write_records
from benchmarks.frame import BenchmarkFailed, Figure, Report, said
from edl_allreduce import clock
from edl_allreduce.cluster.registry import LocalJobFiles
from edl_allreduce.testing.jobs import RunningJob
from edl_allreduce.web.guard import page_token, page_url
from edl_allreduce.worker.loop.orders import Progress
from edl_allreduce.worker.loop.pace import Pace
from kubelab import tiers

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
SETTLE_SECONDS = 1.0
"""After a page was opened or closed: the cost of that is not that of a steady state."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER_FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")


@dataclass(frozen=True)
class Window:
    """Of time, and the seconds of processor that the master and all workers took in it."""

    began: float
    ended: float
    master: float
    workers: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began


def main(argv: list[str] | None = None) -> int:
    return frame.run(measure, flags, argv)


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=10, help="pairs of windows")
    parser.add_argument("--seconds", type=float, default=4.0, help="of one window")
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--viewers", type=int, default=1, help="pages that are open")


def measure(settings: argparse.Namespace, directory: Path) -> Report:
    if not _browser():
        tiers.install(["chromium"])
    data = write_records(directory / "data", 150 * WORKERS * BATCH)
    windows: dict[str, list[Window]] = {SEEN: [], UNSEEN: []}
    numbers = {"num_workers": WORKERS, "minibatch_size": BATCH, "num_epochs": 100_000, "log_loss_steps": 10}
    where = directory / "seen"
    more = {"tensorboard_log_dir": directory / "curves", "dashboard_port": "auto"}
    with our_job(where, settings.model, data, **numbers, **more) as job, pages(job) as opened:
        _wait_for_step(job, WARM_UP_STEPS)
        for round_ in range(settings.rounds):
            order = (SEEN, UNSEEN) if round_ % 2 else (UNSEEN, SEEN)
            with said(f"round {round_ + 1}"):
                for kind in order:
                    viewers = settings.viewers if kind == SEEN else 0
                    with looking(job, opened, viewers):
                        windows[kind].append(_watched(job, settings.seconds))
        steps = our_steps(job, worker=0)
        stop(job)
    paces = {kind: Figure.of(_pace(steps, one) for one in found) for kind, found in windows.items()}
    return _report(settings, paces, windows)


def _watched(job: RunningJob, seconds: float) -> Window:
    clock.sleep(SETTLE_SECONDS)
    began, before = clock.wall(), _processor_seconds(job)
    clock.sleep(seconds)
    ended, after = clock.wall(), _processor_seconds(job)
    return Window(began, ended, after[0] - before[0], after[1] - before[1])


def _processor_seconds(job: RunningJob) -> tuple[float, float]:
    """Of the job's process, which is its master, and of its workers."""
    master = str(job.process.pid)
    workers = Path(f"/proc/{master}/task/{master}/children").read_text().split()
    ticks = os.sysconf("SC_CLK_TCK")
    return _ticks(master) / ticks, sum(map(_ticks, workers)) / ticks


def _ticks(pid: str) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _report(
    settings: argparse.Namespace, paces: dict[str, Figure], windows: dict[str, list[Window]]
) -> Report:
    browser = "in a browser" if _browser() else "without a browser: none is installed"
    report = Report(
        "seeing",
        f"{settings.model}, {WORKERS} workers, while {settings.viewers} look {browser}",
        ("", "steps/s", "workers, ms of processor per step", "master, ms of processor per second"),
    )
    for kind, found in windows.items():
        pace = report.keep(kind, paces[kind])
        pairs = zip(found, pace.values, strict=True)
        of_workers = report.keep(
            f"workers per step, {kind}", Figure.of(w.workers / w.seconds / p for w, p in pairs)
        )
        of_master = report.keep(f"master per second, {kind}", Figure.of(w.master / w.seconds for w in found))
        texts = pace.text("{:.1f}"), of_workers.text("{:.2f}", 1000), of_master.text("{:.1f}", 1000)
        report.rows.append((kind, *texts))
    ratio = report.keep("steps/s ratio", paces[SEEN].over(paces[UNSEEN]))
    cost = report.keep("cost", Figure.of([_cost(windows)]))
    own = report.keep("ledger, seconds per step", Figure.of([ledger_seconds()]))
    share = own.median * paces[UNSEEN].median
    report.keep("ledger, share of a step", Figure.of([share]))
    report.notes.append(
        f"a worker's ledger: {own.median * 1e6:.1f} µs of processor per step, {share:.2%} of it"
    )
    report.notes.append(f"steps/s, seen / unseen: {ratio.text('{:.3f}')}")
    report.verdict = (
        f"being seen costs {cost.median:.2%} of the job's processor time (steps/s: {ratio.median:.3f}), "
        f"the ledger {share:.2%} of a step; wanted < 1 %"
    )
    return report


def _cost(windows: dict[str, list[Window]]) -> float:
    """What the master takes more while it is seen, of what the job takes."""
    seen, unseen = (Figure.of(w.master / w.seconds for w in windows[kind]) for kind in (SEEN, UNSEEN))
    whole = Figure.of((w.master + w.workers) / w.seconds for w in windows[UNSEEN])
    return (seen.median - unseen.median) / whole.median


def ledger_seconds() -> float:
    """What a step pays for the worker's ledger and its times, in a ring of many."""
    return min(_ledger_seconds(Pace(Progress())) for _ in range(LEDGER_TRIES))


def _ledger_seconds(pace: Pace) -> float:
    computed = tuple(0.001 * rank for rank in range(RANKS))
    began = time.thread_time()
    for _ in range(LEDGER_STEPS):
        pace.begins()
        pace.takes()
        pace.has_taken()
        pace.meets()
        pace.applied(computed, None)
        pace.over()
    return (time.thread_time() - began) / LEDGER_STEPS


def _pace(steps: list[tuple[float, int]], window: Window) -> float:
    """Steps per second between the first and the last line of a log within these times."""
    began, ended = window.began, window.ended
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


Open = Callable[[], Callable[[], None]]
"""Opens a page of the job; what it returns closes it."""


@contextmanager
def pages(job: RunningJob) -> Iterator[Open]:
    """How a page is opened: in a browser that runs all the time, or read by a thread where there is none."""
    if not _browser():
        yield lambda: _read_updates(*_page_of(job))
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_browser(), args=BROWSER_FLAGS)

        def show() -> Callable[[], None]:
            tab = browser.new_page()
            tab.goto(page_url(*_page_of(job)))
            tab.get_by_role("heading", level=1).wait_for()
            return tab.close

        yield show
        browser.close()


def _browser() -> str:
    try:
        import playwright.sync_api  # noqa: F401  a tool of developers
    except ImportError:
        return ""
    return next((path for name in BROWSERS if (path := shutil.which(name))), "")


def _read_updates(page: str, token: str) -> Callable[[], None]:
    over = threading.Event()
    thread = threading.Thread(target=_view, args=(page, token, over))
    thread.start()

    def close() -> None:
        over.set()
        thread.join()

    return close


@contextmanager
def looking(job: RunningJob, opened: Open, viewers: int) -> Iterator[None]:
    """So many pages are open meanwhile, and a monitor scrapes; nobody where there are no viewers."""
    over = threading.Event()
    close = [opened() for _ in range(viewers)]
    monitor = threading.Thread(target=_scrape, args=(_page_of(job)[0], over))
    if viewers:
        monitor.start()
    try:
        yield
    finally:
        over.set()
        if viewers:
            monitor.join()
        for one in close:
            one()


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
