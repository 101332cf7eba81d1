"""Answers: when will a running job end, when will a queued one begin.

Sizes are taken to stay as planned. A job that waits begins when enough others have ended; those who run will
mostly be faster than this, because they get what the ended ones leave, so both times are rather too late
than too early, as long as no more jobs come.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from edl_allreduce.core.autoscale.cluster import Ask
from edl_allreduce.core.autoscale.jobs import Job
from edl_allreduce.core.autoscale.table import Seat, Table

Times = tuple[float | None, float | None]
"""When it begins (None: it runs, or nobody knows) and when it ends (None: nobody knows)."""


def forecast(table: Table, jobs: Sequence[Job], now: float) -> dict[str, Times]:
    """The table is left as it was."""
    mark = table.mark()
    times: dict[str, Times] = {}
    ends: list[tuple[float, str]] = []
    for job in jobs:
        size = table.size(job.name)
        if size:
            end = now + job.time_left(size) if job.known else None
            times[job.name] = None, end
            heapq.heappush(ends, (math.inf if end is None else end, job.name))
    waiting = [job for job in jobs if not table.size(job.name)]
    waiting.sort(key=lambda job: (-job.priority, job.submitted, job.name))
    while waiting and ends:
        end, name = heapq.heappop(ends)
        if end == math.inf:
            break
        for seat in list(table.seats[name]):
            table.leave(seat)
        tried: dict[Ask, int] = {}
        for job in list(waiting):
            ask = table.ask(job.name)
            if job.minimum >= tried.get(ask, job.minimum + 1):
                continue  # one that asked for no more did not fit
            if not _seated(table, job):
                tried[ask] = job.minimum
            else:
                waiting.remove(job)
                over = end + job.start_up + job.trained_for(job.minimum) if job.known else None
                times[job.name] = end, over
                heapq.heappush(ends, (math.inf if over is None else over, job.name))
    table.back_to(mark)
    return times


def _seated(table: Table, job: Job) -> bool:
    mark = table.mark()
    while table.size(job.name) < job.minimum:
        node = table.free_node(job.name, load=1.0)
        if node is None:
            table.back_to(mark)
            return False
        table.sit(Seat(job.name, node))
    return True
