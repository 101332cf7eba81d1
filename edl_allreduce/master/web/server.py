"""The master's one HTTP server, in the master's own loop: page, live updates, commands, metrics, probes."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from aiohttp import web

from edl_allreduce import outside
from edl_allreduce.core.protocol import Command, DrainWorker, Scale, StopJob
from edl_allreduce.core.status import JobStatus
from edl_allreduce.errors import EdlError, UsageError
from edl_allreduce.master.web import guard
from edl_allreduce.master.web.feed import Feed, encode
from edl_allreduce.reading import UNDECODABLE

log = logging.getLogger(__name__)

STATIC: Final = Path(__file__).parent / "static"
LARGEST_REQUEST: Final = 4096
"""Bytes of a command."""
MOST_VIEWERS: Final = 32
MOST_CONNECTIONS: Final = 256
"""More are hung up on: whoever may connect must not use up the descriptors that workers need."""
SILENCE_SECONDS: Final = 30.0
"""How long a connection may ask for nothing."""
LAST_PICTURE_SECONDS: Final = 1.0
"""How long a page that is still open may take to get the last picture of a job that is over."""

Answer = Callable[[Command], Awaitable[JobStatus]]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Render = Callable[[], tuple[bytes, str]]
"""The figures for a monitor, and their content type."""


class _Scale(msgspec.Struct, forbid_unknown_fields=True):
    num_workers: int


class _Drain(msgspec.Struct, forbid_unknown_fields=True):
    worker_id: int


class _Full(asyncio.Protocol):
    """Hangs up."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class PageServer:
    """Serves one job. `answer` is what commands go to, as those of the terminal do."""

    def __init__(self, feed: Feed, answer: Answer, token: str, metrics: Render | None = None) -> None:
        self._feed, self._answer, self._token, self._metrics = feed, answer, token, metrics
        self._names = frozenset({socket.gethostname().lower()})
        self._viewers: set[asyncio.Task[object]] = set()
        app = web.Application(middlewares=[self._guarded], client_max_size=LARGEST_REQUEST)
        app.add_routes(
            [
                web.get("/", self._page),
                web.get("/api/state", self._state),
                web.get("/api/updates", self._updates),
                web.post("/api/scale", self._scale),
                web.post("/api/drain", self._drain),
                web.post("/api/stop", self._stop),
                web.get("/healthz", self._alive),
                web.get("/readyz", self._ready),
                web.static("/static", STATIC),
            ]
        )
        if metrics is not None:
            app.router.add_get("/metrics", self._figures)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            shutdown_timeout=LAST_PICTURE_SECONDS,
            handler_cancellation=True,
            keepalive_timeout=SILENCE_SECONDS,
        )
        self._listener: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; port 0 takes a free one. Returns the port, or raises OSError when it is taken."""
        await self._runner.setup()
        listener = socket.create_server(
            (host.strip("[]"), port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
        self._listener = await asyncio.get_running_loop().create_server(self._admit, sock=listener)
        return int(listener.getsockname()[1])

    def _admit(self) -> asyncio.Protocol:
        server = self._runner.server
        assert server is not None
        return server() if len(server.connections) < MOST_CONNECTIONS else _Full()

    async def stop(self) -> None:
        """Whoever looks gets the last picture first."""
        self._feed.close()
        if self._viewers:
            await asyncio.wait(self._viewers, timeout=LAST_PICTURE_SECONDS)
        if self._listener is not None:
            self._listener.close()
        await self._runner.cleanup()

    # ------------------------------------------------------------------------------------------- guarding

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        refusal = self._refusal(request)
        response = refusal if refusal is not None else await _told(handler, request)
        if not response.prepared:
            response.headers.update(guard.HEADERS)
        return response

    def _refusal(self, request: web.Request) -> web.Response | None:
        if request.path in guard.OPEN:
            return None
        if guard.strange_host(request.host, self._names):
            return _error(421, "this is no name of this machine; use http://localhost:… or its address")
        if not request.path.startswith("/api/"):
            return None
        if guard.from_elsewhere(request.headers):
            return _error(403, "a page of another site asked for this")
        if not guard.knows(self._token, request.headers):
            return _error(
                401, "the token of the page is missing or wrong; `elasticdl dashboard` opens it with it"
            )
        return None

    # ------------------------------------------------------------------------------------------- showing

    async def _page(self, request: web.Request) -> web.StreamResponse:
        return web.FileResponse(STATIC / "index.html")

    async def _state(self, request: web.Request) -> web.Response:
        # A long history is megabytes: the loop hears its workers meanwhile.
        body = await asyncio.to_thread(encode, self._feed.update())
        return web.Response(body=body, content_type="application/json")

    async def _updates(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events: everything, or what came after `since`, then every change until the end."""
        if len(self._viewers) >= MOST_VIEWERS:
            return _error(503, f"{MOST_VIEWERS} pages look at this job already; close some")
        viewer = asyncio.current_task()
        assert viewer is not None
        self._viewers.add(viewer)
        try:
            response = web.StreamResponse(headers={**guard.HEADERS, "Content-Type": "text/event-stream"})
            await response.prepare(request)
            await self._send_updates(response, _number(request.query.get("since", "0")))
            return response
        finally:
            self._viewers.discard(viewer)

    async def _send_updates(self, response: web.StreamResponse, since: int) -> None:
        sampled = 0.0
        while True:
            over = self._feed.over
            whole, update = since == 0, self._feed.update(since, sampled)
            since = update.serial
            sampled = update.samples[-1].wall if update.samples else sampled
            data = await asyncio.to_thread(encode, update) if whole else encode(update)
            await response.write(b"data: " + data + b"\n\n")
            if over:
                await response.write(b"event: end\ndata: {}\n\n")
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


async def _told(handler: Handler, request: web.Request) -> web.StreamResponse:
    """What a command met becomes an answer that the page can show."""
    try:
        return await handler(request)
    except EdlError as error:
        return _error(409, str(error))
    except web.HTTPException as error:
        return _error(error.status, error.reason)


_Body = TypeVar("_Body")


async def _body(request: web.Request, kind: type[_Body]) -> _Body:
    try:
        return msgspec.json.decode(await request.read(), type=kind)
    except UNDECODABLE as error:
        raise UsageError(
            f"the page asked for what this master does not know: {outside.line(error)}"
        ) from error


def _error(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 16 else 0
