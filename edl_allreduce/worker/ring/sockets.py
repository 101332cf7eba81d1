"""This process's sockets, through /proc: who is at the other end, and how a stock Horovod is made to fail.

Horovod as it is sold waits for a peer that is silent, and offers no call that ends the wait. Its sockets are
those that appeared while it formed the ring; shutting them down makes its operations fail.
"""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path

log = logging.getLogger(__name__)

Sockets = set[tuple[int, str]]
"""Each as (descriptor, identity); a descriptor alone may be used again."""


def own_sockets() -> Sockets:
    """Those that are open now."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if target.startswith("socket:"):
            found.add((int(entry.name), target))
    return found


def is_own(client: object, server: object) -> bool:
    """Whether a connection that came from `client` to `server`, both of this machine, is of this process.

    The kernel has one socket with these two ends, so who holds it is the one who connected.
    """
    for descriptor, _ in own_sockets():
        try:
            with socket.socket(fileno=os.dup(descriptor)) as duplicate:
                if duplicate.getsockname() == client and duplicate.getpeername() == server:
                    return True
        except OSError:  # it listens, or was closed a moment ago
            continue
    return False


def shut_down(sockets: Sockets) -> None:
    """End these connections, if they are still there."""
    for descriptor, identity in sockets & own_sockets():
        try:
            with socket.socket(fileno=os.dup(descriptor)) as duplicate:
                duplicate.shutdown(socket.SHUT_RDWR)
        except OSError:
            log.debug("socket %s was closed already", identity)
