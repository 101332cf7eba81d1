"""The page of a job, served in its master's own loop: live updates, commands, metrics, probes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import msgspec
from aiohttp import web

from edl_allreduce import outside
from edl_allreduce.core.protocol import Command, DrainWorker, Scale, StopJob
from edl_allreduce.core.status import JobStatus
from edl_allreduce.errors import UsageError
from edl_allreduce.master.web.feed import Feed, encode
from edl_allreduce.reading import UNDECODABLE
from edl_allreduce.web.site import Site

Answer = Callable[[Command], Awaitable[JobStatus]]
Render = Callable[[], tuple[bytes, str]]
"""The figures for a monitor, and their content type."""


class _Scale(msgspec.Struct, forbid_unknown_fields=True):
    num_workers: int


class _Drain(msgspec.Struct, forbid_unknown_fields=True):
    worker_id: int


class PageServer:
    """Serves one job. `answer` is what commands go to, as those of the terminal do."""

    def __init__(self, feed: Feed, answer: Answer, token: str, metrics: Render | None = None) -> None:
        self._feed, self._answer, self._metrics = feed, answer, metrics
        routes = [
            web.get("/api/state", self._state),
            web.get("/api/updates", self._updates),
            web.post("/api/scale", self._scale),
            web.post("/api/drain", self._drain),
            web.post("/api/stop", self._stop),
            web.get("/healthz", self._alive),
            web.get("/readyz", self._ready),
        ]
        if metrics is not None:
            routes.append(web.get("/metrics", self._figures))
        self._site = Site("index.html", routes, token)

    async def start(self, host: str, port: int) -> int:
        """Listen; port 0 takes a free one. Returns the port, or raises OSError when it is taken."""
        return await self._site.start(host, port)

    async def stop(self) -> None:
        """Whoever looks gets the last picture first."""
        self._feed.close()
        await self._site.stop()

    # ------------------------------------------------------------------------------------------- showing

    async def _state(self, request: web.Request) -> web.Response:
        # A long history is megabytes: the loop hears its workers meanwhile.
        body = await asyncio.to_thread(encode, self._feed.update())
        return web.Response(body=body, content_type="application/json")

    async def _updates(self, request: web.Request) -> web.StreamResponse:
        return await self._site.stream(request, self._changes(_number(request.query.get("since", "0"))))

    async def _changes(self, since: int) -> AsyncIterator[bytes]:
        """Everything, or what came after `since`, then every change until the end."""
        sampled = 0.0
        while True:
            over = self._feed.over
            whole, update = since == 0, self._feed.update(since, sampled)
            since = update.serial
            sampled = update.samples[-1].wall if update.samples else sampled
            yield await asyncio.to_thread(encode, update) if whole else encode(update)
            if over:
                return
            await self._feed.next_beat()

    async def _alive(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _ready(self, request: web.Request) -> web.Response:
        """Until the job is over: then there is nothing left to ask for."""
        return web.Response(text="over\n", status=503) if self._feed.over else web.Response(text="ok\n")

    async def _figures(self, request: web.Request) -> web.Response:
        assert self._metrics is not None
        body, content_type = self._metrics()
        return web.Response(body=body, headers={"Content-Type": content_type})

    # ----------------------------------------------------------------------------------------- commanding

    async def _scale(self, request: web.Request) -> web.Response:
        return await self._do(Scale((await _body(request, _Scale)).num_workers))

    async def _drain(self, request: web.Request) -> web.Response:
        return await self._do(DrainWorker((await _body(request, _Drain)).worker_id))

    async def _stop(self, request: web.Request) -> web.Response:
        return await self._do(StopJob("asked on the job's page"))

    async def _do(self, command: Command) -> web.Response:
        await self._answer(command)
        return web.json_response({})


_Body = TypeVar("_Body")


async def _body(request: web.Request, kind: type[_Body]) -> _Body:
    try:
        return msgspec.json.decode(await request.read(), type=kind)
    except UNDECODABLE as error:
        raise UsageError(
            f"the page asked for what this master does not know: {outside.line(error)}"
        ) from error


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 16 else 0
