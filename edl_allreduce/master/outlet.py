"""Standard output and error of a job that goes on when nobody reads them any more.

A closed terminal, a pipe whose reader has gone (`| head`), a full disk: whatever is printed after that is
lost, the job is not. All of it is in the master's log as well.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO


class Outlet(io.TextIOBase):
    """A stream that never fails."""

    def __init__(self, stream: TextIO, on_loss: Callable[[str], None]) -> None:
        self._stream = stream
        self._on_loss = on_loss
        self.lost = False

    def write(self, text: str) -> int:
        self._try(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]  # typeshed: an attribute
        return self._stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]  # typeshed: an attribute
        return self._stream.errors

    def give_up(self) -> None:
        """From now on everything goes nowhere, also what libraries write to the descriptor itself."""
        self.lost = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def _try(self, action: Callable[[], object]) -> None:
        try:
            action()
        except OSError as error:
            if not self.lost:
                self.give_up()
                self._on_loss(error.strerror or str(error))


@contextmanager
def installed(on_loss: Callable[[str], None]) -> Iterator[tuple[Outlet, Outlet]]:
    """Outlets in the place of both standard streams."""
    before = sys.stdout, sys.stderr
    out, err = Outlet(sys.stdout, on_loss), Outlet(sys.stderr, on_loss)
    sys.stdout, sys.stderr = out, err
    try:
        yield out, err
    finally:
        out.flush()
        err.flush()
        sys.stdout, sys.stderr = before
