"""SIGTERM and SIGINT, heard at once.

A Python handler runs only between bytecodes of the main thread, which may wait in a collective for long, and
pid 1 of a container ignores signals without a handler. So both are blocked before TensorFlow starts its
threads, and one thread waits for them.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

TERMINATION = {signal.SIGTERM, signal.SIGINT}


def block() -> None:
    """Call first of all: threads that start later inherit the mask."""
    signal.pthread_sigmask(signal.SIG_BLOCK, TERMINATION)


def on_termination(drain: Callable[[], None]) -> None:
    """The first signal drains; the second ends the process."""

    def wait() -> None:
        signal.sigwait(TERMINATION)
        drain()
        signal.sigwait(TERMINATION)
        os._exit(1)

    threading.Thread(target=wait, name="signals", daemon=True).start()
