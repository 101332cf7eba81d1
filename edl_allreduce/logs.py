"""Where log lines go: the only module that configures logging.

A process in a pod or under a local master prints; a local master writes files that must not disturb it, too.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from types import TracebackType

from edl_allreduce import outside
from edl_allreduce.errors import UsageError

ONLY_FILES = {"only_files": True}
"""As `extra` of a log call: this is in the files only, and printed elsewhere in a better form."""


def time_of(wall: float) -> str:
    """A moment as lines of JSON have it."""
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds")


class Formatter(logging.Formatter):
    """Log lines hold what workers and users said."""

    def format(self, record: logging.LogRecord) -> str:
        return outside.story(super().format(record))


class JsonFormatter(logging.Formatter):
    """A line is a JSON object, for collectors of logs."""

    def __init__(self, who: str) -> None:
        super().__init__()
        self._who = who

    def format(self, record: logging.LogRecord) -> str:
        said = {
            "time": time_of(record.created),
            "level": record.levelname,
            "process": self._who,
            "logger": record.name,
            "message": outside.story(record.getMessage()),
        }
        if record.exc_info:
            said["exception"] = outside.story(self.formatException(record.exc_info))
        return json.dumps(said, ensure_ascii=False)


class _File(logging.FileHandler):
    """What a full disk does not take is lost."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Nobody is there to be told."""


class Harmless:
    """Around what only looks at a job: an exception in it is logged, the first with its traceback, and ends
    nothing else."""

    def __init__(self, log: logging.Logger, what: str) -> None:
        self._log, self._what, self._failed = log, what, False

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        if not isinstance(error, Exception):
            return False
        if not self._failed:
            self._log.error("%s; the job goes on", self._what, exc_info=error)
        self._failed = True
        return True


def print_lines(level: str, who: str, *, as_json: bool = False, unless_configured: bool = False) -> None:
    """Log to standard output, each line with the name of the process; a user's script may know better.

    `as_json`: also what Python itself would write to standard error, since collectors read both.
    """
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_formatter(who, as_json=as_json))
    logging.basicConfig(level=level, handlers=[handler], force=not unless_configured)
    if as_json:
        logging.captureWarnings(True)
        sys.excepthook = _log_uncaught


def _log_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    logging.getLogger(__name__).critical("the process ends", exc_info=(kind, error, traceback))


def _formatter(who: str, *, as_json: bool) -> logging.Formatter:
    if as_json:
        return JsonFormatter(who)
    name = f" [{who}]" if who else ""
    return Formatter(f"%(asctime)s %(levelname)s{name} %(message)s")


def configure(
    level: str, who: str, *, files: Mapping[str, str], to_terminal: bool, as_json: bool = False
) -> None:
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
        handler.setFormatter(_formatter(who, as_json=as_json))
    logging.basicConfig(level=level, handlers=handlers, force=True)
