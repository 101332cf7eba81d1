"""One picture of a job, as large as the terminal is: with little room, what matters most stays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from edl_allreduce import outside
from edl_allreduce.core.digest import digest, sparkline
from edl_allreduce.core.goodput import TITLES
from edl_allreduce.core.progress import duration
from edl_allreduce.core.protocol import Evaluated
from edl_allreduce.core.status import JobStatus, WorkerStatus, metrics_line
from edl_allreduce.master import report

NARROW = 64
"""Columns below which there is no frame, and only the columns of a table that matter most."""
ROWS_WITHOUT_A_TERMINAL = 40
SHOWN_EVENTS = 10
FEWEST_EVENTS = 3
FEWEST_WORKERS = 3

COLOURS = {
    "evict": "red", "failure": "red", "exit": "red", "abort": "yellow", "drain": "yellow", "stop": "yellow",
    "short": "yellow", "edited": "yellow", "newcomers": "green", "warning": "red", "nan": "red",
    "notice": "yellow", "plan": "cyan", "re-form": "green", "ready": "green", "finish": "green",
    "straggler": "yellow", "goodput": "cyan",
}  # fmt: skip
STATES = {"ring": "green", "done": "green", "draining": "yellow", "slow": "yellow"}


def render(status: JobStatus) -> RenderableType:
    """One picture of the job; also what `elasticdl status` prints."""
    return Picture(status)


@dataclass(frozen=True)
class Picture:
    """Fits itself into the console that draws it."""

    status: JobStatus

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        narrow = options.max_width < NARROW
        width = options.max_width - (0 if narrow else 4)
        height = console.height if console.is_terminal else ROWS_WITHOUT_A_TERMINAL
        status = self.status
        title = Text.assemble((outside.name(status.job_name), "bold"), f" · {outside.name(status.phase)}")
        head = [*_head(status, width, narrow=narrow)]
        left = height - sum(_rows(part, width) for part in head) - 3
        workers, events = _shares(len(status.workers), len(status.events), left)
        body = _stacked(
            [*head, _workers(status, workers, narrow=narrow), *_events(status, events, narrow=narrow)]
        )
        if narrow:
            yield title
            yield body
        else:
            yield Panel(body, title=title, title_align="left")


def _shares(workers: int, events: int, rows: int) -> tuple[int, int]:
    """How many workers and events are shown: events give way first, then workers."""
    wanted = min(events, SHOWN_EVENTS)
    shown = max(FEWEST_WORKERS, min(workers, rows - 2 - min(wanted, FEWEST_EVENTS)))
    return shown, max(min(wanted, FEWEST_EVENTS), min(wanted, rows - 2 - min(shown, workers)))


def _stacked(parts: list[RenderableType]) -> Table:
    grid = Table.grid(expand=True)
    grid.add_column()
    for part in parts:
        grid.add_row(part)
    return grid


def _rows(part: RenderableType, width: int) -> int:
    if isinstance(part, Text) and not part.no_wrap:
        return max(1, -(-part.cell_len // max(1, width)))
    return 1


# ------------------------------------------------------------------------------------------------- the head


def _head(status: JobStatus, width: int, *, narrow: bool) -> Iterator[RenderableType]:
    yield from _progress(status, narrow=narrow)
    yield _joined(_speed(status, width, narrow=narrow), narrow=narrow)
    yield _joined(_ring(status) if status.counts == "step" else _crew(status), narrow=narrow)
    spent = _goodput(status, narrow=narrow)
    if spent:
        yield Text(spent, no_wrap=True, overflow="ellipsis")
    if status.metrics:
        said = metrics_line(Evaluated(status.metrics_step, status.metrics))
        yield Text(outside.line(said), no_wrap=True, overflow="ellipsis")
    if status.waiting_for:
        yield Text(f"waiting: {outside.line(status.waiting_for)}", style="yellow")
    if status.short:
        yield Text(outside.line(status.short), style="yellow")


def _joined(parts: list[str], *, narrow: bool) -> Text:
    return Text(
        ("  " if narrow else "   ").join(part for part in parts if part), no_wrap=True, overflow="ellipsis"
    )


def _progress(status: JobStatus, *, narrow: bool) -> Iterator[RenderableType]:
    total = max(1, status.total_steps)
    done = ProgressBar(total=total, completed=min(status.step, total))
    first, *rest = report.place(status)
    after = "   ".join(part for part in (*rest, report.time_left(status)) if part)
    if narrow:
        yield Text(first, no_wrap=True, overflow="ellipsis")
        yield done
        if after:
            yield Text(after, no_wrap=True, overflow="ellipsis")
        return
    bar = Table.grid(padding=(0, 1), expand=True)
    bar.add_column(no_wrap=True)
    bar.add_column(ratio=1)  # the bar gives way
    bar.add_column(no_wrap=True)
    bar.add_row(first, done, after)
    yield bar


def _speed(status: JobStatus, width: int, *, narrow: bool) -> list[str]:
    mean = "mean " if status.phase in report.OVER else ""
    curve = sparkline(status.losses, 10 if narrow else min(30, width // 5))
    loss = f"loss {report.number(status.loss) if status.loss == status.loss else '-'}"
    steps = f"{mean}{status.steps_per_second:.1f} steps/s" if status.steps_per_second and not narrow else ""
    return [
        f"{loss} {curve}".rstrip() if status.counts == "step" else "",
        f"{mean}{status.records_per_second:,.0f} records/s" if status.records_per_second else "",
        steps,
        "" if narrow and status.records_per_second else duration(status.elapsed),
    ]


def _ring(status: JobStatus) -> list[str]:
    ring = sum(w.rank >= 0 for w in status.workers)
    wanted = status.wanted or "any"
    return [f"ring {ring} of {wanted} (min {status.minimum})", f"generation {status.generation}"]


def _crew(status: JobStatus) -> list[str]:
    """Who works where no ring is needed; nobody is left when it is over."""
    over = status.phase in report.OVER
    return [] if over else [f"workers {len(status.workers)} of {status.wanted or 'any'}"]


def _goodput(status: JobStatus, *, narrow: bool) -> str:
    seen = status.goodput
    if seen.wall <= 0:
        return ""
    words = f"goodput {100 * seen.share:.0f} %"
    if narrow:
        return f"{words}, of workers {100 * seen.worker_share:.0f} %"
    lost = ", ".join(f"{TITLES[bucket]} {duration(seconds)}" for bucket, seconds in seen.lost()[:2])
    return f"{words}, {100 * seen.worker_share:.0f} % of worker seconds" + (f"; lost: {lost}" if lost else "")


# ---------------------------------------------------------------------------------------------- the workers


def _workers(status: JobStatus, rows: int, *, narrow: bool) -> RenderableType:
    """One row for each. Steps are not shown: all members make the same one at the same time, and what is
    known of each is as old as its heartbeat."""
    if not status.workers:
        return Text()
    pulled = status.counts == "task"
    where = _where(status.workers)
    columns = ["worker", "task" if pulled else "rank", "state"]
    columns += [] if pulled else ["own part", "speed"] if narrow else ["own part", "of best", "of own"]
    if not narrow:
        columns += ["doing", where]
    table = Table(box=None, pad_edge=False, padding=(0, 1 if narrow else 2, 0, 0))
    for column in columns:
        left = column in ("state", "doing", "address", "node")
        table.add_column(column, justify="left" if left else "right", no_wrap=True, overflow="ellipsis")
    for worker in status.workers[:rows]:
        cells: list[RenderableType] = [str(worker.worker_id), _place(worker, pulled=pulled), _state(worker)]
        cells += [] if pulled else [_own_part(worker), *_scores(worker, narrow=narrow)]
        if not narrow:
            cells += [outside.name(worker.activity), _place_of(worker, where)]
        table.add_row(*cells)
    rest = status.workers[rows:]
    if not rest:
        return table
    counted = Counter(outside.name(worker.standing) for worker in rest)
    more = ", ".join(f"{count} {state}" for state, count in sorted(counted.items()))
    return _stacked([table, Text(f"and {len(rest)} more: {more}", style="dim")])


def _place(worker: WorkerStatus, *, pulled: bool) -> str:
    if pulled:
        return str(worker.step) if worker.standing == "working" else ""
    return str(worker.rank) if worker.rank >= 0 else ""


def _state(worker: WorkerStatus) -> Text:
    state = "draining" if worker.draining else "slow" if worker.straggler else worker.standing
    return Text(outside.name(state), style=STATES.get(state, "dim"))


def _own_part(worker: WorkerStatus) -> str:
    """Of a step, before it meets the others."""
    if worker.compute_seconds <= 0:
        return ""
    return f"{1000 * worker.compute_seconds:.1f} ms"


def _scores(worker: WorkerStatus, *, narrow: bool) -> list[str]:
    """How quick it is beside the quickest rank and its own best; where room is scarce the worse one."""
    scores = (worker.best_rank_score, worker.own_best_score)
    if worker.compute_seconds <= 0:
        return [""] * (1 if narrow else 2)
    return [f"{100 * score:.0f} %" for score in ((min(scores),) if narrow else scores)]


def _where(workers: list[WorkerStatus]) -> str:
    """What tells people where a worker is: processes of this machine have a number, pods a node."""
    if any(worker.pid for worker in workers):
        return "pid"
    return "node" if any(worker.node for worker in workers) else "address"


def _place_of(worker: WorkerStatus, where: str) -> str:
    if where == "pid":
        return str(worker.pid or "")
    return outside.name(worker.node if where == "node" else worker.host)


# ----------------------------------------------------------------------------------------------- the events


def _events(status: JobStatus, rows: int, *, narrow: bool) -> Iterator[RenderableType]:
    first = status.events[0].wall if status.events else 0.0
    for line in digest(status.events)[-rows:] if rows else []:
        text = Text(no_wrap=True, overflow="ellipsis")
        if not narrow:
            text.append(f"+{line.wall - first:6.1f} s  ", style="dim")
        kind = outside.name(line.kind)
        text.append(f"{kind} " if narrow else f"{kind:<10} ", style=COLOURS.get(line.kind, ""))
        text.append(outside.line(line.text))
        yield text
