"""A running job on a terminal (a live table) or in a log (a line now and then)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.live import Live

from edl_allreduce import clock, outside
from edl_allreduce.core.status import JobStatus
from edl_allreduce.master import report
from edl_allreduce.master.picture import render

log = logging.getLogger(__name__)

REFRESH_SECONDS = 0.25
"""Four pictures per second look alive and cost next to nothing."""


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
