"""A job that commands can ask, wherever it runs, and how its master is reached."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec

from edl_allreduce import outside
from edl_allreduce.core.status import EventRecord, JobStatus
from edl_allreduce.errors import JobFailed
from edl_allreduce.reading import UNDECODABLE
from edl_allreduce.storage.url import Place


class Address(msgspec.Struct, frozen=True):
    """How commands and workers find a running job."""

    job_name: str
    address: str
    token: str
    pid: int
    ticks: int
    """When the process began, on the kernel's own count: a pid alone may be used again."""
    started: float
    cwd: str = ""
    flags: list[str] = []
    """Of the job, as its workers read them; relative paths count from `cwd`."""
    certificate: str = ""
    """With one the master speaks TLS (jobs on Kubernetes)."""
    page: str = ""
    """Host and port of the job's page; empty without one."""
    mark: str = ""
    """In the environment of all workers that this master started, and of nobody else."""


def event_line(event: EventRecord) -> bytes:
    """An event as files and the logs of pods keep it."""
    return msgspec.json.encode(event) + b"\n"


def read_event(line: bytes | str) -> EventRecord | None:
    """An event from its line; None when it is not whole."""
    try:
        return msgspec.json.decode(line, type=EventRecord)
    except UNDECODABLE:
        return None


class KnownJob(Protocol):
    """A job that commands can ask, wherever it runs."""

    @property
    def name(self) -> str: ...

    @property
    def where(self) -> str:
        """Where the rest of the story is."""

    @property
    def named(self) -> str:
        """The flags by which commands find it."""

    @property
    def started(self) -> float:
        """When its master began, in seconds since 1970; 0 where that is not known."""

    def running(self) -> Address | None:
        """How to reach the master, if it lives."""

    def over(self) -> bool:
        """Whether no master of it will run any more; one that restarts, or has no room yet, is not over."""

    def result(self) -> JobStatus | None:
        """The last status of a job that ended in order."""

    def events(self) -> list[EventRecord]:
        """What happened so far; of a job that runs elsewhere the latest."""

    def history(self) -> list[EventRecord]:
        """All that happened, as far as anybody keeps it."""

    def resize(self, workers: int | None) -> bool:
        """Tell whoever decides how many workers it has; False where that is its master.

        None: that one decides alone again.
        """

    def absence(self) -> str:
        """Why there is no master to ask, and where to look."""

    def page(self) -> str:
        """Host and port at which this machine reaches the page of a job that runs; empty without one."""

    def report(self) -> bytes:
        """What its page showed last, as JSON, of a job that is over; empty where nobody kept it."""

    def audit_dir(self) -> Place:
        """Where its workers wrote down which records they used; raises UsageError where nobody can tell."""

    def logs(self) -> list[str]:
        """Whose logs there are: numbers of workers in their order, then the master's."""

    def log_lines(self, whose: str = "", *, follow: bool = False) -> Iterator[tuple[str, str]]:
        """Who printed a line, and the line: of one log, or of all workers. `follow`: until the job ends."""


def running_address(job: KnownJob) -> Address:
    """The address of a job that must run for what is asked of it."""
    address = job.running()
    if address is not None:
        return address
    result = job.result()
    if result is not None:
        raise JobFailed(f"job {job.name} is over: {result.phase}, {outside.line(result.reason)}")
    raise JobFailed(f"job {job.name} does not run: {job.absence()}")
