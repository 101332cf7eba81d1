"""The page of a cluster, served by each controller on its loopback only.

Whoever may forward a port to a controller's pod may look, as Kubernetes' own rights say; nothing can be
commanded here. It shows what the API server has, so a controller that does not lead shows the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Final

import msgspec
from aiohttp import web

from edl_allreduce.clock import SYSTEM, Clock
from edl_allreduce.controller.mirror import JOBS, NODES, PODS, Mirror
from edl_allreduce.controller.picture import ClusterSample, Picture, picture, sample
from edl_allreduce.core.series import Series
from edl_allreduce.logs import Harmless
from edl_allreduce.web.site import Site

log = logging.getLogger(__name__)

LOOPBACK: Final = "127.0.0.1"
LOOK_SECONDS: Final = 2.0
"""Between two pictures."""


class Update(msgspec.Struct, frozen=True):
    """The picture as it is, and the samples that the page does not have yet."""

    picture: Picture
    samples: list[ClusterSample]
    me: str
    """The controller that serves this, and since when it looks: samples begin there."""


class ClusterPage:
    """Follows the mirror of a controller, in its loop."""

    def __init__(self, mirror: Mirror, me: str, *, clock: Clock = SYSTEM) -> None:
        self._mirror, self._me, self._clock = mirror, me, clock
        self._picture: Picture | None = None
        self._series: Series[ClusterSample] = Series(interval=LOOK_SECONDS)
        self._beat = asyncio.Event()
        self._harmless = Harmless(log, "the page of the cluster could not be brought up to date")
        self._task: asyncio.Task[None] | None = None
        routes = [web.get("/api/state", self._state), web.get("/api/updates", self._updates)]
        self._site = Site("cluster.html", routes, token=None)

    async def start(self, port: int) -> int:
        """The port, on loopback; with 0 the system chooses one. Raises OSError when it is taken."""
        port = await self._site.start(LOOPBACK, port)
        self._task = asyncio.create_task(self._run())
        return port

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        await self._site.stop()

    async def _run(self) -> None:
        while True:
            with self._harmless:
                await self.look()
            await self._clock.rest(LOOK_SECONDS)

    async def look(self) -> None:
        """Take a picture, if everything was listed, and show it to those who wait."""
        if not self._mirror.whole:
            return
        jobs, nodes, pods = (list(self._mirror.of(one)) for one in (JOBS, NODES, PODS))
        seen = self._picture = await asyncio.to_thread(picture, jobs, nodes, pods, self._clock.wall())
        if self._series.due(seen.wall):
            self._series.add(sample(seen))
        beat, self._beat = self._beat, asyncio.Event()
        beat.set()

    def _update(self, since: float) -> Update | None:
        if self._picture is None:
            return None
        return Update(self._picture, self._series.after(since), self._me)

    async def _state(self, request: web.Request) -> web.Response:
        update = self._update(0.0)
        if update is None:
            raise web.HTTPServiceUnavailable(reason="this controller has not seen the whole cluster yet")
        # A long history is megabytes: the loop renews its lease meanwhile.
        body = await asyncio.to_thread(msgspec.json.encode, update)
        return web.Response(body=body, content_type="application/json")

    async def _updates(self, request: web.Request) -> web.StreamResponse:
        return await self._site.stream(request, self._changes(_moment(request.query.get("since", "0"))))

    async def _changes(self, since: float) -> AsyncIterator[bytes]:
        """Everything, or what came after `since`, then every picture for as long as somebody looks."""
        while True:
            update = self._update(since)
            if update is not None:
                whole, since = since == 0, update.samples[-1].wall if update.samples else since
                encode = msgspec.json.encode
                yield await asyncio.to_thread(encode, update) if whole else encode(update)
            await self._beat.wait()


def _moment(text: str) -> float:
    try:
        return max(0.0, float(text)) if len(text) < 32 else 0.0
    except ValueError:
        return 0.0
