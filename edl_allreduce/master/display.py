"""A running job on a terminal (a live table) or in a log (a line now and then)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from edl_allreduce import clock, outside
from edl_allreduce.core.progress import duration
from edl_allreduce.core.protocol import Evaluated
from edl_allreduce.core.status import JobStatus, metrics_line
from edl_allreduce.master import report

log = logging.getLogger(__name__)

REFRESH_SECONDS = 0.25
"""Four pictures per second look alive and cost next to nothing."""
SHOWN_EVENTS = 10

COLOURS = {
    "evict": "red", "failure": "red", "exit": "red", "abort": "yellow", "drain": "yellow", "stop": "yellow",
    "short": "yellow", "edited": "yellow", "newcomers": "green", "warning": "red", "nan": "red",
    "notice": "yellow", "plan": "cyan", "re-form": "green", "ready": "green", "finish": "green",
}  # fmt: skip


def can_draw(console: Console) -> bool:
    """Whether a picture can be drawn over the last one; elsewhere (pipes, TERM=dumb) lines must do."""
    return console.is_terminal and not console.is_dumb_terminal


class Display:
    """Looks at the job's status until it is closed: draws the table where there is one, logs the lines."""

    def __init__(self, status: Callable[[], JobStatus], *, show: bool) -> None:
        console = outside.console()
        self._status = status
        self._told = report.Told()
        self._failed = False
        self._live: Live | None = None
        if show and can_draw(console):
            self._live = Live(render(status()), console=console, auto_refresh=False)
            self._live.start()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            with self._harmless():
                status = self._status()
                self._told, line = report.next_line(self._told, status, clock.now())
                if line:
                    log.info("progress: %s", line)
                self._draw(status)

    def _draw(self, status: JobStatus) -> None:
        if self._live is not None:
            self._live.update(render(status), refresh=True)

    @contextmanager
    def _harmless(self) -> Iterator[None]:
        """What cannot be shown spoils the picture, and never the job."""
        try:
            yield
        except Exception:
            if not self._failed:
                log.exception("a picture of the job could not be drawn; the job goes on")
            self._failed = True

    def give_up_table(self) -> None:
        """The terminal is gone; the lines in the log go on."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    async def close(self) -> None:
        """Leave the last picture on the screen."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        if self._live is not None:
            with self._harmless():
                self._draw(self._status())
            self._live.stop()


def render(status: JobStatus) -> RenderableType:
    """One picture of the job; also what `elasticdl status` prints."""
    return Panel(
        Group(_headline(status), _progress(status), _workers(status), _events(status)),
        title=Text.assemble((outside.name(status.job_name), "bold"), f" · {outside.name(status.phase)}"),
        title_align="left",
    )


def _headline(status: JobStatus) -> Text:
    mean = "mean " if status.phase in report.OVER else ""
    parts = [
        *(_ring_and_loss(status) if status.counts == "step" else _crew(status)),
        f"{mean}{status.steps_per_second:.1f} steps/s" if status.steps_per_second else "",
        f"{mean}{status.records_per_second:,.0f} records/s" if status.records_per_second else "",
        duration(status.elapsed),
    ]
    text = Text("   ".join(part for part in parts if part))
    if status.metrics:
        text.append(f"\n{outside.line(metrics_line(Evaluated(status.metrics_step, status.metrics)))}")
    if status.waiting_for:
        text.append(f"\nwaiting: {outside.line(status.waiting_for)}", style="yellow")
    if status.short:
        text.append(f"\n{outside.line(status.short)}", style="yellow")
    return text


def _ring_and_loss(status: JobStatus) -> list[str]:
    ring = sum(w.rank >= 0 for w in status.workers)
    return [
        f"ring {ring} of {status.wanted or 'any'} (min {status.minimum}), generation {status.generation}",
        f"loss {report.number(status.loss) if status.loss == status.loss else '-'}",
    ]


def _crew(status: JobStatus) -> list[str]:
    """Who works where no ring is needed; nobody is left when it is over."""
    over = status.phase in report.OVER
    return [] if over else [f"workers {len(status.workers)} of {status.wanted or 'any'}"]


def _progress(status: JobStatus) -> RenderableType:
    total = max(1, status.total_steps)
    bar = Table.grid(padding=(0, 1), expand=True)
    bar.add_column(no_wrap=True)
    bar.add_column(ratio=1)  # the bar gives way
    bar.add_column(no_wrap=True)
    first, *rest = report.place(status)
    after = "   ".join(part for part in (*rest, report.time_left(status)) if part)
    bar.add_row(first, ProgressBar(total=total, completed=min(status.step, total)), after)
    return bar


def _workers(status: JobStatus) -> RenderableType:
    """One row for each. Steps are not shown: all members make the same one at the same time, and what is
    known of each is as old as its heartbeat."""
    if not status.workers:
        return Text()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    here = any(worker.pid for worker in status.workers)
    pulled = status.counts == "task"
    place = "task" if pulled else "rank"
    for column in ("worker", place, "state", "doing", "pid" if here else "address"):
        table.add_column(column, justify="left" if column in ("state", "doing", "address") else "right")
    for worker in status.workers:
        state = "draining" if worker.draining else worker.standing
        colour = {"ring": "green", "done": "green", "draining": "yellow"}.get(state, "dim")
        seated = worker.standing == "working" if pulled else worker.rank >= 0
        table.add_row(
            str(worker.worker_id),
            str(worker.step if pulled else worker.rank) if seated else "",
            Text(outside.name(state), style=colour),
            outside.name(worker.activity),
            str(worker.pid or "") if here else outside.name(worker.host),
        )
    return table


def _events(status: JobStatus) -> Text:
    text = Text()
    first = status.events[0].wall if status.events else 0.0
    for event in status.events[-SHOWN_EVENTS:]:
        text.append(f"\n+{event.wall - first:6.1f} s  ", style="dim")
        text.append(f"{outside.name(event.kind):<10} ", style=COLOURS.get(event.kind, ""))
        text.append(outside.line(event.text))
    return text
