"""What the next master of a job must know is written down while this one lives: nobody asks a dead one."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from edl_allreduce import files
from edl_allreduce.clock import SYSTEM, Clock
from edl_allreduce.core import goodput
from edl_allreduce.core.job.inheritance import Inheritance
from edl_allreduce.errors import ClusterError
from edl_allreduce.reading import UNDECODABLE, small_file

log = logging.getLogger(__name__)

FILE: Final = "inheritance.json"
LOOK_SECONDS: Final = 2.0
IDLE_SECONDS: Final = 30.0
"""Where nothing happens: ledgers of workers tell the rest."""
MOST_LIVES: Final = 1000
"""Of workers, where room is scarce: each takes up to 450 bytes, compressed."""
LAST_SECONDS: Final = 3.0
"""For the last words of a master that is asked to end."""


class Left(msgspec.Struct, frozen=True):
    """The sums of a job, and the number of its last event."""

    serial: int
    job: Inheritance


def encode(left: Left) -> bytes:
    return msgspec.json.encode(left)


def shortened(left: Left) -> Left:
    """As much as a ConfigMap takes, however many workers there are."""
    account = goodput.at_most(left.job.account, MOST_LIVES)
    return Left(left.serial, dataclasses.replace(left.job, account=account))


def decode(text: bytes) -> Left | None:
    """None when it cannot be read: then the sums begin anew."""
    try:
        return msgspec.json.decode(text, type=Left)
    except UNDECODABLE:
        return None


def write_file(directory: Path, left: Left) -> None:
    """May raise OSError."""
    files.write(directory / FILE, encode(left), private=True)


def read_file(directory: Path) -> Left | None:
    try:
        return decode(small_file(directory / FILE))
    except OSError:
        return None


class Notary:
    """Writes down what is left while the job runs, soon after something happened; belongs to the loop.

    `write` may block, and returns for how many seconds it wants to be left alone.
    """

    def __init__(
        self, left: Callable[[], Left], write: Callable[[Left], float], *, clock: Clock = SYSTEM
    ) -> None:
        self._left, self._write, self._clock = left, write, clock
        self._task: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self._failed = False

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        serial, due, quiet_until = -1, float("-inf"), float("-inf")
        while True:
            now = self._clock.now()
            left = self._left()
            if now >= quiet_until and (left.serial != serial or now >= due):
                rest = await self._write_down(left)
                serial, due = left.serial, now + IDLE_SECONDS
                quiet_until = now + rest
            await self._clock.rest(LOOK_SECONDS)

    async def _write_down(self, left: Left) -> float:
        async with self._writing:
            try:
                return await asyncio.to_thread(self._write, left)
            except Exception as error:  # whatever it was, the next try may do, and the end must not wait
                if not self._failed:
                    unexpected = not isinstance(error, OSError | ClusterError)
                    log.warning(
                        "what the next master of this job should know cannot be kept: %s",
                        repr(error) if unexpected else error,
                        exc_info=unexpected,
                    )
                self._failed = True
                return IDLE_SECONDS

    async def close(self) -> None:
        """The last word; a disk or an API server that is silent does not hold the end."""
        try:
            await asyncio.wait_for(self._last_word(), LAST_SECONDS)
        except TimeoutError:
            log.warning("the last of what the next master should know could not be kept in time")

    async def _last_word(self) -> None:
        async with self._writing:  # a thread that writes is not interrupted: two would write at once
            if self._task is not None:
                self._task.cancel()
        await self._write_down(self._left())
