"""What happened to a job, one JSON per line, in a file that outlives its master."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from edl_allreduce.cluster.known import event_line
from edl_allreduce.cluster.registry import EVENTS, EVENTS_BEFORE, LocalJobFiles
from edl_allreduce.core.status import EventRecord

log = logging.getLogger(__name__)

LARGEST_BYTES = 16 * 1024 * 1024
"""Of one file; then it becomes the file before it, which is the last that is kept."""


class History:
    """The events of one job. `goes_on`: those of an earlier master are of the same job."""

    def __init__(self, directory: Path, *, goes_on: bool) -> None:
        self._path, self._before = directory / EVENTS, directory / EVENTS_BEFORE
        known = LocalJobFiles(directory).events() if goes_on else []
        self.last_serial = known[-1].serial if known else 0
        if not goes_on:
            self._before.unlink(missing_ok=True)
        self._descriptor = self._open(os.O_APPEND if goes_on else os.O_TRUNC)
        if goes_on:  # a master that was killed in the middle of a line: nobody can read that one
            os.ftruncate(self._descriptor, self._path.read_bytes().rfind(b"\n") + 1)
        self._written = os.fstat(self._descriptor).st_size

    def _open(self, flag: int) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | flag, 0o666)

    def write(self, event: EventRecord) -> None:
        """May raise OSError: the disk is full, or somebody deleted the directory."""
        if self._written >= LARGEST_BYTES:
            self._path.replace(self._before)
            os.close(self._descriptor)
            self._descriptor = self._open(os.O_TRUNC)
            self._written = 0
        self._written += os.write(self._descriptor, event_line(event))

    def close(self) -> None:
        os.close(self._descriptor)


class PodHistory:
    """The same in a pod, in the directory that outlives its containers. What an earlier container told is not
    in the log of this one, so it is read from there; a pod without such a directory keeps nothing."""

    def __init__(self, directory: Path, *, goes_on: bool) -> None:
        usable = directory.is_dir() and os.access(directory, os.W_OK)
        self.known = LocalJobFiles(directory).events() if usable and goes_on else []
        self._history = History(directory, goes_on=goes_on) if usable else None
        self.last_serial = self._history.last_serial if self._history is not None else 0

    def write(self, event: EventRecord) -> None:
        """A full disk ends the file, not the job; the log of the pod goes on."""
        try:
            if self._history is not None:
                self._history.write(event)
        except OSError as error:
            log.warning("the history is no longer kept: %s", error.strerror)
            self._history = None
