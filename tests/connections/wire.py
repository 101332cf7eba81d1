"""A wire between workers and their master that can be cut, on one side or on both, and silenced."""

from __future__ import annotations

import socket
import struct
import threading
from dataclasses import dataclass, field

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with no time: closing says RST instead of FIN."""


@dataclass
class Call:
    """One connection of a worker, and the one that carries it on to the master."""

    worker: socket.socket
    master: socket.socket


@dataclass
class Wire:
    """Listens on a port of its own and passes everything on to the master's."""

    to: int
    calls: list[Call] = field(default_factory=list)
    open: threading.Event = field(default_factory=threading.Event)
    """Cleared: nothing passes, and nobody is told."""
    refusing: bool = False

    def __post_init__(self) -> None:
        self.open.set()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                worker, _ = self._server.accept()
            except OSError:
                return  # the test is over
            if self.refusing:
                _reset(worker)
                continue
            try:
                master = socket.create_connection(("127.0.0.1", self.to))
            except OSError:  # it does not listen (yet)
                _reset(worker)
                continue
            self.calls.append(Call(worker, master))
            for source, target in ((worker, master), (master, worker)):
                threading.Thread(target=self._carry, args=(source, target), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                self.open.wait()
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            return  # it was cut

    def cut(self, *, workers: bool = True, master: bool = True) -> int:
        """Reset every connection, as those at these ends see it; returns how many there were."""
        calls, self.calls = self.calls, []
        for call in calls:
            if workers:
                _reset(call.worker)
            if master:
                _reset(call.master)
        if not (workers and master):
            self.calls += calls  # the other halves stay open, and whoever is there knows nothing
        return len(calls)

    def close(self) -> None:
        self._server.close()
        self.open.set()
        self.cut()


def _reset(connection: socket.socket) -> None:
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it is closed already
    connection.close()
