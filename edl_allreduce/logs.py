"""Where log lines go: the only module that configures logging.

A process in a pod or under a local master prints; a local master writes files that must not disturb it, too.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping

from edl_allreduce import outside
from edl_allreduce.errors import UsageError

ONLY_FILES = {"only_files": True}
"""As `extra` of a log call: this is in the files only, and printed elsewhere in a better form."""


class Formatter(logging.Formatter):
    """Log lines hold what workers and users said."""

    def format(self, record: logging.LogRecord) -> str:
        return outside.story(super().format(record))


class _File(logging.FileHandler):
    """What a full disk does not take is lost."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Nobody is there to be told."""


def print_lines(level: str, who: str, *, unless_configured: bool = False) -> None:
    """Log to standard output, each line with the name of the process; a user's script may know better."""
    logging.basicConfig(
        level=level,
        format=f"%(asctime)s %(levelname)s [{who}] %(message)s",
        stream=sys.stdout,
        force=not unless_configured,
    )


def configure(level: str, form: str, *, files: Mapping[str, str], to_terminal: bool) -> None:
    """Log into these files (by the flag that named them; empty ones are left out) and to standard output."""
    handlers: list[logging.Handler] = []
    for flag, path in files.items():
        if not path:
            continue
        try:
            handlers.append(_File(path, encoding="utf-8", errors="backslashreplace"))
        except OSError as error:
            raise UsageError(f"{flag}={path}: cannot be written: {error.strerror}. Choose another.") from None
    if to_terminal:
        terminal = logging.StreamHandler(sys.stdout)
        terminal.addFilter(lambda record: not getattr(record, "only_files", False))
        handlers.append(terminal)
    for handler in handlers:
        handler.setFormatter(Formatter(form))
    logging.basicConfig(level=level, handlers=handlers, force=True)
