"""Horovod's rendezvous store, on this worker's own loopback.

Horovod's C++ side wants an HTTP key-value server. Its own is open to the network and answers "not there"
until a client polls again. This one listens on 127.0.0.1 only, sends what its rank sets to the master over
the authenticated stream, and answers a GET when the key arrives. When the generation is superseded every
request gets 410 and `hvd.init` ends.

Everybody on the machine can connect to it, and what it is told is believed by the whole ring. So it serves
its own process only: whose connection it is says the kernel, not the one who asks.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any

from edl_allreduce import faults
from edl_allreduce.core import protocol
from edl_allreduce.core.rendezvous import LONGEST_VALUE
from edl_allreduce.worker.ring.sockets import is_own

log = logging.getLogger(__name__)

BAD_REQUEST = 400
GONE = 410
NOT_THERE = 404
ALL = "all-"
"""Our Horovod sets its part `all-<size>/<rank>` and asks for `all-<size>`: all parts at once."""

KEYS = re.compile(
    rf"/(?:global|local_|cross_)[^/\s]{{0,300}}/(?:{ALL}\d{{1,6}}(?:/\d{{1,6}})?|(?:rank_)?\d{{1,6}})"
)
"""Horovod's, also a stock one's (`rank_<n>`); what else workers tell each other does not come from here."""

LONGEST_LINE = 8 * 1024
MOST_HEADERS = 32
MOST_CONNECTIONS = 64
IDLE_SECONDS = 60.0
"""Horovod opens another connection when its last one was closed."""


class LoopbackStore:
    """Keys of one generation at a time."""

    def __init__(self, publish: Callable[[protocol.FromWorker], None], longest_wait: float) -> None:
        self._publish = publish
        self._longest_wait = longest_wait
        self._changed = threading.Condition()
        self._generation = 0
        self._keys: dict[str, bytes] = {}
        self._early: dict[int, dict[str, bytes]] = {}
        """Keys of peers that were quicker to a generation than this worker."""
        self._requests = 0
        self.coordinates: dict[str, int] = {}
        """Who asks, for faults."""
        self._server = _Server(self)
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="store", daemon=True).start()

    def open(self, generation: int) -> None:
        """Begin a generation: forget the keys of the one before."""
        with self._changed:
            if generation == self._generation:
                return
            self._generation = generation
            self._keys = self._early.pop(generation, {})
            self._early = {g: keys for g, keys in self._early.items() if g > generation}
            self._requests = 0
            self._changed.notify_all()

    def close(self, generation: int) -> None:
        """Generations up to this one are superseded: whoever still asks is told so."""
        if self._generation <= generation:
            self.open(0)

    def arrived(self, generation: int, key: str, value: bytes) -> None:
        """A key that a member of the generation set."""
        with self._changed:
            if generation == self._generation:
                self._keys[key] = value
                self._changed.notify_all()
            elif generation > self._generation:
                self._early.setdefault(generation, {})[key] = value

    def set(self, key: str, value: bytes) -> bool:
        self._count()
        generation = self._generation
        if generation == 0:
            return False
        whole, _, name = key.rpartition("/")
        _, several, size = whole.rpartition(f"/{ALL}")
        if several:
            self._publish(protocol.KvPart(generation, whole, int(name), int(size), value))
        else:
            self.arrived(generation, key, value)
            self._publish(protocol.KvSet(generation, key, value))
        return True

    def get(self, key: str) -> bytes | int:
        """The value, or the HTTP status that says why there is none."""
        self._count()
        with self._changed:
            generation = self._generation
            if generation == 0:
                return GONE
            self._changed.wait_for(
                lambda: key in self._keys or self._generation != generation, self._longest_wait
            )
            if self._generation != generation:
                return GONE
            return self._keys.get(key, NOT_THERE)

    def _count(self) -> None:
        with self._changed:
            self._requests += 1
            requests, generation = self._requests, self._generation
        faults.reach("init", generation=generation, request=requests, **self.coordinates)


class _Server(ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 512

    def __init__(self, store: LoopbackStore) -> None:
        self.store = store
        self._places = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._told = False
        super().__init__(("127.0.0.1", 0), _Handler)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Before a byte is read, and before there is a thread for it."""
        if not is_own(client_address, self.server_address):
            if not self._told:
                log.warning(
                    "another process connected to this worker's rendezvous store and was hung up "
                    "(said once; it learns and changes nothing)"
                )
            self._told = True
            return False
        return self._places.acquire(blocking=False)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a request to the store ended early", exc_info=True)


class _BadRequest(Exception):
    """Nothing that Horovod would say."""


class _Handler(StreamRequestHandler):
    """As much of HTTP as Horovod speaks. The library's server reads headers as mail, which takes longer than
    all the rest of a rendezvous."""

    server: _Server
    timeout = IDLE_SECONDS
    # Head and body go out together: apart, the body would wait 40 ms for the delayed acknowledgement.
    disable_nagle_algorithm = True

    def handle(self) -> None:
        keep = True
        while keep:
            try:
                request = self._line()
                if not request:
                    return
                keep, answer = self._serve(request)
            except _BadRequest:
                keep, answer = False, BAD_REQUEST
            status, value = (answer, b"") if isinstance(answer, int) else (200, answer)
            self.wfile.write(b"HTTP/1.1 %d -\r\nContent-Length: %d\r\n\r\n" % (status, len(value)) + value)

    def _serve(self, request: str) -> tuple[bool, bytes | int]:
        """Whether the connection is kept, and the answer."""
        match request.split():
            case [method, path, _] if KEYS.fullmatch(path):
                headers = dict(self._headers())
            case _:
                raise _BadRequest
        length = headers.get("content-length", "0")
        if not re.fullmatch(r"\d{1,9}", length, re.ASCII) or int(length) > LONGEST_VALUE:
            raise _BadRequest
        body = self.rfile.read(int(length))
        return headers.get("connection") != "close", self._answer(method, path, body)

    def _line(self) -> str:
        line = self.rfile.readline(LONGEST_LINE + 1)
        if len(line) > LONGEST_LINE:
            raise _BadRequest
        return line.decode("latin-1")

    def _headers(self) -> Iterator[tuple[str, str]]:
        for _ in range(MOST_HEADERS):
            line = self._line().strip()
            if not line:
                return
            name, _, value = line.partition(":")
            yield name.lower(), value.strip().lower()
        raise _BadRequest

    def _answer(self, method: str, path: str, body: bytes) -> bytes | int:
        match method:
            case "GET":
                return self.server.store.get(path)
            case "PUT":
                return b"" if self.server.store.set(path, body) else GONE
            case "DELETE":  # keys go with their generation
                return b""
        raise _BadRequest
