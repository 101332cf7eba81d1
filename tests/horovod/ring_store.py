"""A rendezvous store for tests: an HTTP key-value server with keep-alive whose GETs wait for their key.

It can be told to do what goes wrong in real life: to be superseded (410 for everybody), to answer 404
instead of waiting (as Horovod's own server does), to say nothing at all, and to tell a test about each
request before it is answered, so that a fault can be placed at an exact point of `hvd.init()`.
"""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any

from edl_allreduce.core.parts import Parts


@dataclass(frozen=True)
class Request:
    """Request number `number` (from 1) of a rank."""

    rank: int
    number: int
    method: str
    path: str


class RingStore:
    """The store of one generation. Each rank has its own port, so that requests can be told apart by rank."""

    def __init__(
        self,
        size: int,
        *,
        blocking: bool = True,
        silent: bool = False,
        on_request: Callable[[Request], None] = lambda request: None,
    ) -> None:
        self.requests: list[Request] = []
        self._blocking = blocking
        self._silent = silent
        self._on_request = on_request
        self.values: dict[str, bytes] = {}
        self._ranks: set[int] = set()
        self._parts = Parts()
        self._changed = threading.Condition()
        self._superseded = False
        self._servers = [_Server(self, rank) for rank in range(size)]

    def port(self, rank: int) -> int:
        return int(self._servers[rank].server_address[1])

    def supersede(self) -> None:
        with self._changed:
            self._superseded = True
            self._changed.notify_all()

    def wait_for_part(self, rank: int) -> None:
        """Until this rank listens and has said where."""
        with self._changed:
            self._changed.wait_for(lambda: rank in self._ranks or self._superseded)

    def change(self, how: Callable[[bytes], bytes]) -> None:
        """What all parts together say, from now on."""
        with self._changed:
            self._changed.wait_for(lambda: self.values or self._superseded)
            self.values = {path: how(value) for path, value in self.values.items()}

    def close(self) -> None:
        self.supersede()
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def note(self, rank: int, method: str, path: str) -> None:
        with self._changed:
            number = 1 + sum(request.rank == rank for request in self.requests)
            request = Request(rank, number, method, path)
            self.requests.append(request)
        self._on_request(request)
        with self._changed:
            self._changed.wait_for(lambda: not self._silent or self._superseded)

    def put(self, path: str, value: bytes) -> int:
        with self._changed:
            if self._superseded:
                return 410
            whole, _, name = path.rpartition("/")
            _, several, size = whole.rpartition("/all-")
            if several:
                self._ranks.add(int(name))
                joined = self._parts.add(1, whole, int(name), int(size), value)
                if joined is not None:
                    self.values[whole] = joined
            else:
                self.values[path] = value
            self._changed.notify_all()
            return 200

    def get(self, path: str) -> tuple[int, bytes]:
        with self._changed:
            if self._blocking:
                self._changed.wait_for(lambda: self._superseded or path in self.values)
            if self._superseded:
                return 410, b""
            if path not in self.values:
                return 404, b""
            return 200, self.values[path]


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, store: RingStore, rank: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.store = store
        self.rank = rank
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed in the middle of a request is what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def _handle(self) -> None:
        store, rank = self.server.store, self.server.rank
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        store.note(rank, self.command, self.path)
        if self.command == "PUT":
            status, answer = store.put(self.path, body), b""
        elif self.command == "GET":
            status, answer = store.get(self.path)
        else:
            status, answer = 200, b""
        self.wfile.write(b"HTTP/1.1 %d -\r\nContent-Length: %d\r\n\r\n" % (status, len(answer)) + answer)

    do_GET = do_PUT = do_DELETE = _handle

    def log_message(self, format: str, *args: object) -> None:
        pass
