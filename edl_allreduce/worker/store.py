"""Horovod's rendezvous store, on this worker's own loopback.

Horovod's C++ side wants an HTTP key-value server. Its own is open to the network and answers "not there"
until a client polls again. This one listens on 127.0.0.1 only, sends what its rank sets to the master over
the authenticated stream, and answers a GET when the key arrives. When the generation is superseded every
request gets 410 and `hvd.init` ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from edl_allreduce.testing import faults

GONE = 410
NOT_THERE = 404
ALL = "all-"
"""Our Horovod asks for `all-<size>` and gets the keys of all ranks at once."""


class LoopbackStore:
    """Keys of one generation at a time."""

    def __init__(self, publish: Callable[[int, str, bytes], None], longest_wait: float) -> None:
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

    def known(self, generation: int, key: str) -> bytes | None:
        """What a member of this generation has set under this key, if it did."""
        with self._changed:
            keys = self._keys if generation == self._generation else self._early.get(generation, {})
            return keys.get(key)

    def set(self, key: str, value: bytes) -> bool:
        self._count()
        generation = self._generation
        if generation == 0:
            return False
        self.arrived(generation, key, value)
        self._publish(generation, key, value)
        return True

    def get(self, key: str) -> bytes | int:
        """The value, or the HTTP status that says why there is none."""
        scope, _, name = key.rpartition("/")
        if name.startswith(ALL):
            return self._all([f"{scope}/{rank}" for rank in range(int(name[len(ALL) :]))])
        values = self._wait([key])
        return values if isinstance(values, int) else values[0]

    def _all(self, keys: list[str]) -> bytes | int:
        """Every rank's value in one answer: the lengths in a line, then the values."""
        values = self._wait(keys)
        if isinstance(values, int):
            return values
        return " ".join(str(len(v)) for v in values).encode() + b"\n" + b"".join(values)

    def _wait(self, keys: list[str]) -> list[bytes] | int:
        self._count()
        with self._changed:
            generation = self._generation
            if generation == 0:
                return GONE
            self._changed.wait_for(
                lambda: self._keys.keys() >= set(keys) or self._generation != generation, self._longest_wait
            )
            if self._generation != generation:
                return GONE
            found = [self._keys[key] for key in keys if key in self._keys]
            return found if len(found) == len(keys) else NOT_THERE

    def _count(self) -> None:
        with self._changed:
            self._requests += 1
            requests, generation = self._requests, self._generation
        faults.reach("init", generation=generation, request=requests, **self.coordinates)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def __init__(self, store: LoopbackStore) -> None:
        self.store = store
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"  # our Horovod keeps its connection
    # Head and body go out together: apart, the body would wait 40 ms for the delayed acknowledgement.
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        answer = self.server.store.get(self.path)
        if isinstance(answer, int):
            self._answer(answer)
        else:
            self._answer(200, answer)

    def do_PUT(self) -> None:
        value = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer(200 if self.server.store.set(self.path, value) else GONE)

    def do_DELETE(self) -> None:
        self._answer(200)

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not worth a line each."""
