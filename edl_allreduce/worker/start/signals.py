"""SIGTERM and SIGINT, heard at once.

A Python handler runs only between bytecodes of the main thread, which may wait in a collective for long, and
pid 1 of a container ignores signals without a handler. So both are blocked before TensorFlow starts its
threads, and one thread waits for them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from edl_allreduce.contract import EXIT_FAILED
from edl_allreduce.worker.threads import supervised

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
        os._exit(EXIT_FAILED)

    supervised("signals", wait, lambda name, error: os._exit(EXIT_FAILED))
