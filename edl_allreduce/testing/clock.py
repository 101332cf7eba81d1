"""Time that stands still until a test moves it."""

from __future__ import annotations

import asyncio

SETTLED = 20
"""Rounds of the loop after which nobody has anything left to do at one moment."""


class FakeClock:
    """A `Clock` whose seconds pass in no time: whoever rests wakes when a test moves it on."""

    def __init__(self, now: float = 1000.0, wall: float = 1_700_000_000.0) -> None:
        self._now, self._began, self._wall = now, now, wall
        self._resting: list[tuple[float, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._wall + self._now - self._began

    async def rest(self, seconds: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._resting.append((self._now + seconds, woken))
        await woken

    async def settle(self) -> None:
        """Let everybody do what there is to do at this moment."""
        for _ in range(SETTLED):
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        """Let so many seconds pass, and everybody wake in order."""
        until = self._now + seconds
        await self.settle()
        while due := [at for at, woken in self._resting if at <= until and not woken.done()]:
            self._now = max(self._now, min(due))
            for at, woken in self._resting:
                if at <= self._now and not woken.done():
                    woken.set_result(None)
            self._resting = [(at, woken) for at, woken in self._resting if not woken.done()]
            await self.settle()
        self._now = until
        await self.settle()
