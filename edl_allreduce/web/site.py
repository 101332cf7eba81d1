"""An HTTP server in the loop of its process: guarded, bounded, with live updates, whosever page it is."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Final

from aiohttp import web

from edl_allreduce.errors import EdlError
from edl_allreduce.web import guard

STATIC: Final = Path(__file__).parent / "static"
LARGEST_REQUEST: Final = 4096
"""Bytes of a command."""
MOST_VIEWERS: Final = 32
MOST_CONNECTIONS: Final = 256
"""More are hung up on: whoever may connect must not use up the descriptors that the process needs."""
SILENCE_SECONDS: Final = 30.0
"""How long a connection may ask for nothing."""
LAST_PICTURE_SECONDS: Final = 1.0
"""How long a page that is still open may take to get the last picture."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Full(asyncio.Protocol):
    """Hangs up."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class Site:
    """Serves `page`, a file of `static/`, and what `routes` say; a token of None is not asked for."""

    def __init__(self, page: str, routes: Iterable[web.RouteDef], token: str | None) -> None:
        self._page, self._token = STATIC / page, token
        self._names = frozenset({socket.gethostname().lower()})
        self._viewers: set[asyncio.Task[object]] = set()
        app = web.Application(middlewares=[self._guarded], client_max_size=LARGEST_REQUEST)
        app.add_routes([web.get("/", self._shown), *routes, web.static("/static", STATIC)])
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
        if self._viewers:
            await asyncio.wait(self._viewers, timeout=LAST_PICTURE_SECONDS)
        if self._listener is not None:
            self._listener.close()
        await self._runner.cleanup()

    async def stream(self, request: web.Request, updates: AsyncIterator[bytes]) -> web.StreamResponse:
        """Server-sent events, one for each piece of JSON, and one that says that it was the last."""
        if len(self._viewers) >= MOST_VIEWERS:
            return refused(503, f"{MOST_VIEWERS} pages look at this already; close some")
        viewer = asyncio.current_task()
        assert viewer is not None
        self._viewers.add(viewer)
        try:
            response = web.StreamResponse(headers={**guard.HEADERS, "Content-Type": "text/event-stream"})
            await response.prepare(request)
            async for data in updates:
                await response.write(b"data: " + data + b"\n\n")
            await response.write(b"event: end\ndata: {}\n\n")
            return response
        finally:
            self._viewers.discard(viewer)

    # ------------------------------------------------------------------------------------------- guarding

    async def _shown(self, request: web.Request) -> web.StreamResponse:
        return web.FileResponse(self._page)

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
            return refused(421, "this is no name of this machine; use http://localhost:… or its address")
        if not request.path.startswith("/api/"):
            return None
        if guard.from_elsewhere(request.headers):
            return refused(403, "a page of another site asked for this")
        if self._token is not None and not guard.knows(self._token, request.headers):
            return refused(
                401, "the token of the page is missing or wrong; `elasticdl dashboard` opens it with it"
            )
        return None


async def _told(handler: Handler, request: web.Request) -> web.StreamResponse:
    """What a command met becomes an answer that the page can show."""
    try:
        return await handler(request)
    except EdlError as error:
        return refused(409, str(error))
    except web.HTTPException as error:
        return refused(error.status, error.reason)


def refused(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)
