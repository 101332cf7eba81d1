"""Local jobs, found by name: each keeps its files in a directory that the name determines.

    job.json        how to reach the master; readable by the owner only, since it holds the job's token
    events.jsonl    what happened
    logs/           what each worker printed
    result.msgpack  the last status, written when the job ended in order (JSON knows no NaN)

A master that was killed cannot tidy up, so a job counts as running only while the very process that wrote
job.json lives.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from edl_allreduce.errors import JobFailed, UsageError
from edl_allreduce.rpc.messages import EventRecord, JobStatus
from edl_allreduce.spec.job import jobs_root
from edl_allreduce.spec.words import did_you_mean

ADDRESS = "job.json"
EVENTS = "events.jsonl"
RESULT = "result.msgpack"


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


class KnownJob(Protocol):
    """A job that commands can ask, wherever it runs."""

    @property
    def name(self) -> str: ...

    @property
    def where(self) -> str:
        """Where the rest of the story is."""

    def running(self) -> Address | None:
        """How to reach the master, if it lives."""

    def result(self) -> JobStatus | None:
        """The last status of a job that ended in order."""

    def events(self) -> list[EventRecord]:
        """What happened so far."""

    def absence(self) -> str:
        """Why there is no master to ask, and where to look."""


@dataclass(frozen=True)
class LocalJobFiles:
    """One job of this user on this machine, running or not."""

    directory: Path

    @property
    def name(self) -> str:
        address = self.address()
        return address.job_name if address is not None else self.directory.name

    @property
    def where(self) -> str:
        return str(self.directory / "master.log")

    def address(self) -> Address | None:
        """What the last master wrote, whether it lives or not."""
        try:
            return msgspec.json.decode((self.directory / ADDRESS).read_bytes(), type=Address)
        except (OSError, msgspec.DecodeError):
            return None

    def running(self) -> Address | None:
        """The address, if the master lives."""
        address = self.address()
        return address if address is not None and process_ticks(address.pid) == address.ticks else None

    def result(self) -> JobStatus | None:
        """The last status of a job that ended in order."""
        try:
            return msgspec.msgpack.decode((self.directory / RESULT).read_bytes(), type=JobStatus)
        except (OSError, msgspec.DecodeError):
            return None

    def events(self) -> list[EventRecord]:
        """All that happened so far. A line that is being written is left for the next time."""
        try:
            lines = (self.directory / EVENTS).read_bytes().splitlines(keepends=True)
        except OSError:
            return []
        return [msgspec.json.decode(line, type=EventRecord) for line in lines if line.endswith(b"\n")]

    def absence(self) -> str:
        return (
            f"its master ended without a result. `elasticdl events --job_name={self.name}` and {self.where} "
            "tell the rest."
        )

    def register(self, address: Address) -> None:
        """Announce a master; the result of an earlier run is no longer this job's."""
        (self.directory / RESULT).unlink(missing_ok=True)
        self._write(ADDRESS, msgspec.json.encode(address))

    def write_result(self, status: JobStatus) -> None:
        self._write(RESULT, msgspec.msgpack.encode(status))

    def _write(self, name: str, content: bytes) -> None:
        temporary = self.directory / f".{name}"
        descriptor = os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        temporary.replace(self.directory / name)


def known_jobs(environ: Mapping[str, str] = os.environ) -> list[LocalJobFiles]:
    """Every job that left something in this user's state directory, by name."""
    root = jobs_root(environ)
    folders = sorted(root.iterdir()) if root.is_dir() else []
    jobs = (LocalJobFiles(folder) for folder in folders)
    return [job for job in jobs if job.address() is not None]


def find_job(job_name: str, job_dir: str = "") -> LocalJobFiles:
    """The job of this name or in this directory; without both, the only one that runs."""
    if job_dir:
        job = LocalJobFiles(Path(job_dir))
        if job.address() is None:
            raise UsageError(f"--job_dir={job_dir} holds no job: expected {ADDRESS} in it.")
        return job
    jobs = known_jobs()
    if not job_name:
        running = [job for job in jobs if job.running() is not None]
        if len(running) == 1:
            return running[0]
        count = "no job runs" if not running else f"{len(running)} jobs run"
        raise UsageError(f"--job_name is missing, and {count} on this machine. {_listed(jobs)}")
    for job in jobs:
        if job.name == job_name:
            return job
    guess = did_you_mean(job_name, [job.name for job in jobs])
    raise UsageError(f"there is no local job {job_name}.{guess} {_listed(jobs)}")


def running_address(job: KnownJob) -> Address:
    """The address of a job that must run for what is asked of it."""
    address = job.running()
    if address is not None:
        return address
    result = job.result()
    if result is not None:
        raise JobFailed(f"job {job.name} is over: {result.phase}, {result.reason}")
    raise JobFailed(f"job {job.name} does not run: {job.absence()}")


def token_for(master: str, job_dir: str = "") -> str:
    """The token of the master at this address, if it is a local job of this user; empty otherwise."""
    host, _, port = master.rpartition(":")
    if not _is_loopback(host.strip("[]")):
        return ""
    jobs = [LocalJobFiles(Path(job_dir))] if job_dir else known_jobs()
    for job in jobs:
        address = job.running()
        if address is not None and address.address.rpartition(":")[2] == port:
            return address.token
    return ""


def process_ticks(pid: int) -> int:
    """When the process began; 0 when there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] == "Z" else int(fields[19])


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listed(jobs: list[LocalJobFiles]) -> str:
    if not jobs:
        return "No local job is known; start one with `elasticdl train`."
    names = (f"{job.name} ({'runs' if job.running() is not None else 'over'})" for job in jobs)
    return f"Local jobs: {', '.join(names)}."
