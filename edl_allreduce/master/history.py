"""What happened to a job, one JSON per line, in a file that outlives its master."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from edl_allreduce import clock
from edl_allreduce.cluster.known import event_line
from edl_allreduce.cluster.registry import EVENTS, EVENTS_BEFORE, LocalJobFiles
from edl_allreduce.core.status import EventRecord
from edl_allreduce.errors import ApiRefused, ClusterError
from edl_allreduce.master import inheritance

log = logging.getLogger(__name__)

LARGEST_BYTES = 16 * 1024 * 1024
"""Of one file; then it becomes the file before it, which is the last that is kept."""
MOST_TOLD: Final = 5_000
"""Events that outlive a pod, the newest."""
SERIAL_GAP: Final = 1_000
"""Numbers that the master of another pod leaves free: the last events of the one before it may not have been
kept, and no number may mean two events."""
FORBIDDEN: Final = 403
TRIES: Final = 3
TRY_SECONDS: Final = 1.0
CURE: Final = "(`kubectl apply -f manifests/elasticdl-rbac.yaml` gives the right)"


class History:
    """The events of one job. `goes_on`: those of an earlier master are of the same job."""

    def __init__(self, directory: Path, *, goes_on: bool) -> None:
        self._path, self._before = directory / EVENTS, directory / EVENTS_BEFORE
        known = LocalJobFiles(directory).events() if goes_on else []
        self.last_serial = known[-1].serial if known else 0
        if not goes_on:  # the sums of another run are not this job's either
            self._before.unlink(missing_ok=True)
            (directory / inheritance.FILE).unlink(missing_ok=True)
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


class Keepsake(Protocol):
    """What outlives the pod of a master. Calls block; ClusterError when the API server does not answer."""

    def read(self) -> tuple[bytes, list[EventRecord]]: ...

    def write(self, job: bytes, events: Sequence[EventRecord]) -> float: ...


class PodHistory:
    """The same in a pod, in the directory that outlives its containers, and where the job outlives the pod in
    a keepsake, too. What an earlier master told is not in the log of this one, so it is read from there."""

    def __init__(self, directory: Path, *, goes_on: bool, keepsake: Keepsake | None = None) -> None:
        usable = directory.is_dir() and os.access(directory, os.W_OK)
        self._directory = directory if usable else None
        self._keepsake = keepsake
        self._full = False
        here = usable and goes_on
        self.known = LocalJobFiles(directory).events() if here else []
        self.left = inheritance.read_file(directory) if here else None
        self.last_serial = _last_serial(self.known, self.left)
        told, left = self._read_keepsake()
        newer = left is not None and left.serial > self.last_serial
        takes_over = newer or (self.left is None and bool(told or left))
        self._history = History(directory, goes_on=goes_on and not takes_over) if usable else None
        if takes_over:
            self._take_over(told, left)
        self._told = list(self.known)

    def _read_keepsake(self) -> tuple[list[EventRecord], inheritance.Left | None]:
        if self._keepsake is None:
            return [], None
        for _ in clock.polls(TRY_SECONDS, within=TRIES * TRY_SECONDS):
            try:
                job, told = self._keepsake.read()
                return told, inheritance.decode(job)
            except Exception as error:  # noqa: BLE001  a job does not fail to start for what it did before
                why = error if isinstance(error, ClusterError) else repr(error)
                if isinstance(error, ApiRefused) and error.status == FORBIDDEN:
                    break
        log.warning("history and goodput of the job will not outlive this pod: %s %s", why, CURE)
        self._keepsake = None  # what is there stays as it is for the next master
        return [], None

    def _take_over(self, told: list[EventRecord], left: inheritance.Left | None) -> None:
        """It is written here at once: the next process in this pod goes on from there, even if this one ends
        before its first `keep`. Where this pod told a number too, the earlier master's event has it."""
        by_serial = {event.serial: event for event in (*self.known, *told)}
        self.known, self.left = [by_serial[serial] for serial in sorted(by_serial)], left
        self.last_serial = _last_serial(self.known, left) + SERIAL_GAP
        for event in self.known:
            self._write(event)
        if left is not None:
            self._write_left(inheritance.Left(self.last_serial, left.job))

    def write(self, event: EventRecord) -> None:
        """A full disk ends the file, not the job; the log of the pod goes on."""
        self._told.append(event)
        if len(self._told) > 2 * MOST_TOLD:
            self._told = self._told[-MOST_TOLD:]
        self._write(event)

    def _write(self, event: EventRecord) -> None:
        try:
            if self._history is not None:
                self._history.write(event)
        except OSError as error:
            log.warning("the history is no longer kept: %s", error.strerror)
            self._history = None

    def keep(self, left: inheritance.Left) -> float:
        """For the next master, in this pod or in another. From any thread."""
        self._write_left(left)
        if self._keepsake is None:
            return 0.0
        job = inheritance.encode(inheritance.shortened(left))
        return self._keepsake.write(job, self._told[-MOST_TOLD:])

    def _write_left(self, left: inheritance.Left) -> None:
        """A full disk does not end what is kept elsewhere."""
        if self._directory is None:
            return
        try:
            inheritance.write_file(self._directory, left)
        except OSError as error:
            if not self._full:
                why = error.strerror
                log.warning("the next master of this pod will not know the sums of the job: %s", why)
            self._full = True


def _last_serial(told: Sequence[EventRecord], left: inheritance.Left | None) -> int:
    """The highest number that is known to be used."""
    return max([event.serial for event in told] + ([left.serial] if left is not None else []), default=0)
