"""The live table of a running job: workers, ring, step, loss, throughput, events."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from edl_allreduce.master.job import Job
from edl_allreduce.rpc.messages import Evaluated, JobStatus, metrics_line

REFRESH_SECONDS = 0.25
SHOWN_EVENTS = 10

COLOURS = {
    "evict": "red", "failure": "red", "exit": "red", "abort": "yellow", "drain": "yellow", "stop": "yellow",
    "warning": "red", "plan": "cyan", "re-form": "green", "ready": "green", "finish": "green",
}  # fmt: skip


class LiveTable:
    """Draws the job's status until it is closed; leaves the last picture on the screen."""

    def __init__(self, job: Job, console: Console) -> None:
        self._job = job
        self._live = Live(render(job.status()), console=console, auto_refresh=False)
        self._live.start()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            self._live.update(render(self._job.status()), refresh=True)

    async def close(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        self._live.update(render(self._job.status()), refresh=True)
        self._live.stop()


class Nothing:
    """For logs that are read later: the log lines are the display."""

    async def close(self) -> None:
        return


def make_display(job: Job, show: bool) -> LiveTable | Nothing:
    console = Console()
    return LiveTable(job, console) if show and console.is_terminal else Nothing()


def render(status: JobStatus) -> RenderableType:
    """One picture of the job; also what `elasticdl status` prints."""
    return Panel(
        Group(_headline(status), _progress(status), _workers(status), _events(status)),
        title=f"[bold]{status.job_name}[/] · {status.phase}",
        title_align="left",
    )


def _headline(status: JobStatus) -> Text:
    ring = sum(w.rank >= 0 for w in status.workers)
    loss = f"{status.loss:.4f}" if status.loss == status.loss else "-"
    text = Text(
        f"ring {ring} of {status.wanted or 'any'} (min {status.minimum}), generation {status.generation}   "
        f"loss {loss}   {status.steps_per_second:.1f} steps/s   {status.records_per_second:,.0f} records/s   "
        f"{status.elapsed:.0f} s"
    )
    if status.metrics:
        text.append(f"\n{metrics_line(Evaluated(status.metrics_step, status.metrics))}")
    if status.waiting_for:
        text.append(f"\nwaiting: {status.waiting_for}", style="yellow")
    return text


def _progress(status: JobStatus) -> RenderableType:
    total = max(1, status.total_steps)
    bar = Table.grid(padding=(0, 1))
    bar.add_row(
        f"step {status.step} of {status.total_steps or '?'}",
        ProgressBar(total=total, completed=min(status.step, total), width=48),
    )
    return bar


def _workers(status: JobStatus) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    here = any(worker.pid for worker in status.workers)
    for column in ("worker", "rank", "state", "doing", "step", "pid" if here else "address"):
        table.add_column(column, justify="right" if column in ("worker", "rank", "step", "pid") else "left")
    for worker in status.workers:
        state = "draining" if worker.draining else worker.standing
        colour = {"ring": "green", "done": "green", "draining": "yellow"}.get(state, "dim")
        table.add_row(
            str(worker.worker_id),
            str(worker.rank) if worker.rank >= 0 else "",
            Text(state, style=colour),
            worker.activity,
            str(worker.step or ""),
            str(worker.pid or "") if here else worker.host,
        )
    return table


def _events(status: JobStatus) -> Text:
    text = Text()
    first = status.events[0].wall if status.events else 0.0
    for event in status.events[-SHOWN_EVENTS:]:
        text.append(f"\n+{event.wall - first:6.1f} s  ", style="dim")
        text.append(f"{event.kind:<10} ", style=COLOURS.get(event.kind, ""))
        text.append(event.text.splitlines()[0])
    return text
