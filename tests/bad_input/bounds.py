"""What is allowed while bad input is read: so much memory, so much time, and only errors that we know."""

from __future__ import annotations

import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from edl_allreduce.errors import EdlError

MEMORY = 768 << 20
"""Bytes of address space beyond what the process has. The samples have some kilobytes; threads of native
libraries reserve (not use) 64 MiB each."""
SECONDS = 5.0
"""Of this process on a core. Sound samples take milliseconds."""
WAITING = 60.0
"""Seconds that pass, for whoever waits and does nothing; the machine may be busy."""
LONGEST = 20_000
"""Characters of an error for a person (a flag that holds a novel is quoted)."""


class Hung(BaseException):
    """Beside Exception, so that nothing on the way swallows it."""


@contextmanager
def bounded(memory: int = MEMORY, seconds: float = SECONDS) -> Iterator[None]:
    """Too much memory becomes MemoryError, too much time becomes Hung."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + memory, hard))
    before = [(number, signal.signal(number, _ring)) for number in (signal.SIGPROF, signal.SIGALRM)]
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, WAITING)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before:
            signal.signal(number, handler)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _ring(*_: object) -> None:
    raise Hung("not done in time")


def read_or_told(read: Callable[[], object]) -> str:
    """Works, or fails with our own error, whose words are returned; whatever else happens is raised."""
    with bounded():
        try:
            read()
        except EdlError as error:
            words = str(error)
        else:
            return ""
    assert 20 <= len(words) <= LONGEST, f"no message for a person: {words[:200]!r} ({len(words)})"
    assert " object at 0x" not in words, words
    return words
