"""Horovod's rendezvous store, on this worker's own loopback.

Horovod's C++ side wants an HTTP key-value server. Its own is open to the network and answers "not there"
until a client polls again. This one listens on 127.0.0.1 only, sends what its rank sets to the master over
the authenticated stream, and answers a GET when the key arrives. When the generation is superseded every
request gets 410 and `hvd.init` ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from socketserver import StreamRequestHandler, ThreadingTCPServer

from edl_allreduce import faults
from edl_allreduce.core import protocol

GONE = 410
NOT_THERE = 404
ALL = "all-"
"""Our Horovod sets its part `all-<size>/<rank>` and asks for `all-<size>`: all parts at once."""


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
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(StreamRequestHandler):
    """As much of HTTP as Horovod speaks. The library's server reads headers as mail, which takes longer than
    all the rest of a rendezvous."""

    server: _Server
    # Head and body go out together: apart, the body would wait 40 ms for the delayed acknowledgement.
    disable_nagle_algorithm = True

    def handle(self) -> None:
        keep = True
        while keep and (request := self.rfile.readline()):
            method, path, _ = request.decode().split()
            headers = dict(self._headers())
            keep = headers.get("connection") != "close"
            body = self.rfile.read(int(headers.get("content-length", 0)))
            answer = self._answer(method, path, body)
            status, value = (answer, b"") if isinstance(answer, int) else (200, answer)
            self.wfile.write(b"HTTP/1.1 %d -\r\nContent-Length: %d\r\n\r\n" % (status, len(value)) + value)

    def _headers(self) -> Iterator[tuple[str, str]]:
        while line := self.rfile.readline().decode().strip():
            name, _, value = line.partition(":")
            yield name.lower(), value.strip().lower()

    def _answer(self, method: str, path: str, body: bytes) -> bytes | int:
        match method:
            case "GET":
                return self.server.store.get(path)
            case "PUT":
                return b"" if self.server.store.set(path, body) else GONE
            case _:  # DELETE: keys go with their generation
                return b""
