"""A proxy in front of the API server that misbehaves on rules, the way a busy or restarting one does.

    with cluster.faults() as faults:
        rule = faults.answer(409, method="POST", path=r"/pods$", times=2)
        ...
        assert rule.fired == 2

Rules are tried in the order in which they were added; the first that matches and has not fired `times` often
acts. Requests that no rule wants pass through untouched, watches and upgraded connections (exec) included.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import selectors
import socket
import ssl
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

from kubelab.api import Api
from kubelab.pki import kubeconfig
from kubelab.waiting import pause

_REASONS = {
    *((400, "BadRequest"), (403, "Forbidden"), (404, "NotFound"), (409, "Conflict"), (410, "Expired")),
    *((429, "TooManyRequests"), (500, "InternalError"), (503, "ServiceUnavailable"), (504, "Timeout")),
}


_WHO = "/kubelab-asks-whether-this-is-the-proxy"
_YES = 204


@dataclass(frozen=True)
class Request:
    """A request as a rule sees it."""

    method: str
    path: str
    query: dict[str, list[str]]

    @property
    def is_watch(self) -> bool:
        """Whether it asks for a stream of changes."""
        return self.query.get("watch", ["false"])[0] in ("true", "1")

    @property
    def is_list(self) -> bool:
        """Whether it reads once."""
        return self.method == "GET" and not self.is_watch


@dataclass
class Rule(ABC):
    """What happens to which requests, and how often."""

    method: str | None = None
    """GET, POST, ...; None: any."""
    path: str = ""
    """A regular expression that must be found in the path."""
    times: int | None = None
    """How often it acts; None: always."""
    fired: int = 0
    """How often it has acted."""

    def wants(self, request: Request) -> bool:
        """Whether it applies to a request."""
        return (
            (self.times is None or self.fired < self.times)
            and self.method in (None, request.method)
            and re.search(self.path, request.path) is not None
        )

    @abstractmethod
    def act(self, request: Request, exchange: Exchange) -> None:
        """Misbehave."""


class Exchange(ABC):
    """What a rule can do with a request."""

    @abstractmethod
    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        """Answer in place of the API server."""

    @abstractmethod
    def forward(self, keep: Callable[[bytes], None] | None = None, cut_after: int | None = None) -> None:
        """Pass it on and the answer back; `keep` sees the body, `cut_after` events end a stream."""


@dataclass
class Answer(Rule):
    """Answers with an error; the API server does not see the request."""

    status: int = 500
    retry_after: int | None = None

    def act(self, request: Request, exchange: Exchange) -> None:
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        exchange.answer(self.status, _status(self.status), headers)


@dataclass
class Delay(Rule):
    """Lets a request wait before it passes."""

    seconds: float = 1.0

    def act(self, request: Request, exchange: Exchange) -> None:
        pause(self.seconds)
        exchange.forward()


@dataclass
class CutWatch(Rule):
    """Breaks a watch after some events, in the middle of the stream, without a last word."""

    events: int = 0

    def wants(self, request: Request) -> bool:
        return request.is_watch and super().wants(request)

    def act(self, request: Request, exchange: Exchange) -> None:
        exchange.forward(cut_after=self.events)


@dataclass
class ExpireWatch(Rule):
    """Tells a watch that its resource version is too old: 410 as an event in an answer of 200."""

    def wants(self, request: Request) -> bool:
        return request.is_watch and super().wants(request)

    def act(self, request: Request, exchange: Exchange) -> None:
        event = {"type": "ERROR", "object": json.loads(_status(410))}
        exchange.answer(200, json.dumps(event).encode() + b"\n", {})


@dataclass
class StaleList(Rule):
    """Answers lists with what the first one saw, as an API server that lags behind does."""

    _seen: dict[str, bytes] = field(default_factory=dict)

    def wants(self, request: Request) -> bool:
        return request.is_list and super().wants(request)

    def act(self, request: Request, exchange: Exchange) -> None:
        key = request.path + str(sorted(request.query.items()))
        if key in self._seen:
            exchange.answer(200, self._seen[key], {})
        else:
            exchange.forward(keep=lambda body: self._seen.__setitem__(key, body))


def _status(code: int) -> bytes:
    reason = dict(_REASONS).get(code, "Unknown")
    content = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason}
    return json.dumps({**content, "message": f"injected fault: {reason}"}).encode()


class FaultProxy:
    """The proxy; it lives in this process, so rules are plain objects that a test can look at."""

    def __init__(self, api: Api, run: Path) -> None:
        self._api = api
        self._run = run
        self._rules: list[Rule] = []
        self._lock = threading.Lock()
        self._servers: list[ThreadingHTTPServer] = []
        self._open: set[socket.socket] = set()
        self.requests: list[Request] = []
        """Everything that was asked, in order."""

    def __enter__(self) -> FaultProxy:
        port = self.listen(lambda call: call(), "127.0.0.1")
        authority = self._run / "pki" / "ca.crt"
        kubeconfig(
            self.kubeconfig, f"https://127.0.0.1:{port}", authority, {"token": self._api.token}, "faults"
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()
        self.cut_all()
        self.kubeconfig.unlink()

    @property
    def kubeconfig(self) -> Path:
        """An administrator's kubeconfig that leads through the proxy."""
        return self._run / "faults.kubeconfig"

    def listen(self, inside: Callable[[Callable[[], socket.socket]], socket.socket], host: str) -> int:
        """Listen on one more address, in the network that `inside` calls a function in; return the port."""
        listener = inside(lambda: socket.create_server((host, 0), backlog=128))
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(self._run / "pki" / "apiserver.crt", self._run / "pki" / "apiserver.key")
        handler = type("Handler", (_Handler,), {"proxy": self, "tls": tls})
        server = ThreadingHTTPServer(("", 0), handler, bind_and_activate=False)
        server.socket.close()
        server.socket = listener
        server.daemon_threads = True
        self._servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return int(listener.getsockname()[1])

    def is_reached(
        self, inside: Callable[[Callable[[], socket.socket]], socket.socket], host: str, port: int = 443
    ) -> bool:
        """Whether who connects to a host, in the network that `inside` calls a function in, comes here."""
        tls = ssl.create_default_context(cafile=self._run / "pki" / "ca.crt")
        try:
            with (
                inside(lambda: socket.create_connection((host, port), 5)) as plain,
                tls.wrap_socket(plain, server_hostname=host) as connection,
            ):
                connection.sendall(
                    f"GET {_WHO} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
                )
                return connection.recv(64).startswith(b"HTTP/1.1 %d" % _YES)
        except OSError:
            return False

    # --- rules ---

    def add(self, rule: Rule) -> Rule:
        """Add a rule."""
        with self._lock:
            self._rules.append(rule)
        return rule

    def answer(
        self,
        status: int,
        *,
        method: str | None = None,
        path: str = "",
        times: int | None = None,
        retry_after: int | None = None,
    ) -> Rule:
        """Answer with an HTTP error such as 409, 410, 429, 500."""
        return self.add(Answer(method, path, times, status=status, retry_after=retry_after))

    def delay(
        self, seconds: float, *, method: str | None = None, path: str = "", times: int | None = None
    ) -> Rule:
        """Let requests wait before they pass."""
        return self.add(Delay(method, path, times, seconds=seconds))

    def cut_watch(self, *, path: str = "", after_events: int = 0, times: int | None = None) -> Rule:
        """Break watches that begin from now on after some events."""
        return self.add(CutWatch(None, path, times, events=after_events))

    def expire_watch(self, *, path: str = "", times: int | None = None) -> Rule:
        """Answer watches with the event that says 410 Gone."""
        return self.add(ExpireWatch(None, path, times))

    def stale_list(self, *, path: str = "", times: int | None = None) -> Rule:
        """Answer lists with what the first of them saw."""
        return self.add(StaleList(None, path, times))

    def clear(self) -> None:
        """Forget all rules: behave from now on."""
        with self._lock:
            self._rules.clear()

    def cut_all(self) -> None:
        """Break every open connection now, watches in the middle."""
        with self._lock:
            victims = list(self._open)
        for victim in victims:
            with contextlib.suppress(OSError):
                victim.shutdown(socket.SHUT_RDWR)

    # --- used by the handler ---

    def rule_for(self, request: Request) -> Rule | None:
        """The rule that acts on a request; it counts as fired."""
        with self._lock:
            self.requests.append(request)
            rule = next((rule for rule in self._rules if rule.wants(request)), None)
            if rule is not None:
                rule.fired += 1
            return rule

    def opened(self, connection: socket.socket) -> None:
        """A client connected."""
        with self._lock:
            self._open.add(connection)

    def closed(self, connection: socket.socket) -> None:
        """A client left."""
        with self._lock:
            self._open.discard(connection)

    def connect(self, timeout: float = 3600.0) -> http.client.HTTPSConnection:
        """A connection to the real API server."""
        return self._api.connect(timeout)


class _Handler(BaseHTTPRequestHandler, Exchange):
    """One client's connection."""

    proxy: ClassVar[FaultProxy]
    tls: ClassVar[ssl.SSLContext]
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        # TLS here and not on the listener: a client that dawdles must not keep the others from connecting.
        self.request = self.tls.wrap_socket(self.request, server_side=True)
        self.proxy.opened(self.request)
        super().setup()

    def finish(self) -> None:
        with contextlib.suppress(OSError):
            super().finish()
        self.proxy.closed(self.request)

    def handle(self) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            super().handle()

    def handle_one_request(self) -> None:
        self.raw_requestline = self.rfile.readline(1 << 16)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        self._body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        if parts.path == _WHO:
            self.answer(_YES, b"", {})
            return
        request = Request(self.command, parts.path, parse_qs(parts.query))
        rule = self.proxy.rule_for(request)
        if rule is not None:
            rule.act(request, self)
        elif "upgrade" in self.headers.get("Connection", "").lower():
            self._tunnel()
        else:
            self.forward()

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def forward(self, keep: Callable[[bytes], None] | None = None, cut_after: int | None = None) -> None:
        backend = self.proxy.connect()
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
            if keep is not None or cut_after is not None:
                headers.pop("Accept-Encoding", None)  # what is looked at must not be compressed
            backend.request(self.command, self.path, self._body or None, headers)
            response = backend.getresponse()
            self.send_response(response.status)
            for name, value in response.getheaders():
                if name.lower() not in ("transfer-encoding", "connection", "date", "server"):
                    self.send_header(name, value)
            if response.getheader("Content-Length") is None:
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self._stream(response, keep, cut_after)
            else:
                body = response.read()
                if keep is not None and response.status == 200:
                    keep(body)
                self.end_headers()
                self.wfile.write(body)
        finally:
            backend.close()

    def _stream(
        self, response: http.client.HTTPResponse, keep: Callable[[bytes], None] | None, cut_after: int | None
    ) -> None:
        whole = bytearray()
        events = 0
        while cut_after is None or events < cut_after:
            if cut_after is None:
                chunk = response.read1(1 << 16)
            else:
                chunk = response.readline()  # one event of a watch is one line
                events += 1
            if not chunk:
                break
            whole += chunk if keep is not None else b""
            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            self.wfile.flush()
        if cut_after is not None:
            self.close_connection = True  # no last chunk: to the client the connection broke
            return
        self.wfile.write(b"0\r\n\r\n")
        if keep is not None and response.status == 200:
            keep(bytes(whole))

    def _tunnel(self) -> None:
        """exec, attach and port-forward stop being HTTP: bytes both ways until one side ends."""
        self.close_connection = True
        backend = self.proxy.connect()
        backend.connect()
        there = backend.sock
        head = (
            self.raw_requestline
            + b"".join(f"{k}: {v}\r\n".encode() for k, v in self.headers.items())
            + b"\r\n"
        )
        there.sendall(head + self._body)
        here = self.request
        with selectors.DefaultSelector() as both, contextlib.closing(backend):
            both.register(here, selectors.EVENT_READ, there)
            both.register(there, selectors.EVENT_READ, here)
            while True:
                for key, _ in both.select():
                    source = key.fileobj
                    assert isinstance(source, ssl.SSLSocket)
                    chunk = source.recv(1 << 16)
                    if not chunk:
                        return
                    key.data.sendall(chunk)
                    while source.pending():
                        key.data.sendall(source.recv(source.pending()))

    def log_message(self, format: str, *args: object) -> None:
        """Silence: `requests` of the proxy has them all."""
