"""Local jobs, found by name: each keeps its files in a directory that the name determines.

    lock            held by the running master
    master.sock     where it listens, unless it was given a port
    job.json        how to reach the master; readable by the owner only, since it holds the job's token
    events.jsonl    what happened; events.1.jsonl what happened before it, when that became too large
    inheritance.json  the sums so far, for the next master of the job if this one is killed
    master.log      the master's log, also when nobody reads what is printed
    stdout.log      what a job printed that was started in the background
    logs/           what each worker printed
    report.html     what came of it, as a page; report.json the data of that page
    result.msgpack  the last status, written when the job ended in order (JSON knows no NaN)

A master that was killed cannot tidy up, so a job counts as running only while the very process that wrote
job.json lives.
"""

from __future__ import annotations

import ipaddress
import os
import re
import shlex
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from edl_allreduce import clock, files
from edl_allreduce.cluster.known import Address, read_event
from edl_allreduce.cluster.processes import process_ticks
from edl_allreduce.core.protocol import NoteKind
from edl_allreduce.core.status import EventRecord, JobStatus
from edl_allreduce.errors import StorageError, UsageError
from edl_allreduce.reading import UNDECODABLE, small_file
from edl_allreduce.spec import Command, JobSpec, JobType, parse_job, to_argv
from edl_allreduce.spec.job import jobs_root
from edl_allreduce.spec.words import did_you_mean
from edl_allreduce.storage.remote import store
from edl_allreduce.storage.url import Place, Url, place

ADDRESS = "job.json"
EVENTS = "events.jsonl"
EVENTS_BEFORE = "events.1.jsonl"
RESULT = "result.msgpack"
REPORT = "report.html"
REPORT_DATA = "report.json"
SOCKET = "master.sock"
MASTER_LOG = "master.log"
LOGS = "logs"
MASTER = "master"
"""What people call its log."""
LOG_SECONDS = 0.2
"""How often a log is looked at that is followed."""
ROOM_BYTES = 64 * 1024
"""What a job's own files need at the least."""
SHOWN_JOBS = 5
"""How many an error message names."""
GLANCE_SECONDS = 5.0
"""How long a command that shows something waits for object storage."""
_CHECKPOINT = re.compile(r"version-(\d+)")


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
        return str(self.directory / MASTER_LOG)

    @property
    def named(self) -> str:
        """The flag by which commands find it."""
        usual = self.directory.parent.resolve() == jobs_root().resolve() and self.directory.name == self.name
        return f"--job_name={self.name}" if usual else f"--job_dir={shlex.quote(str(self.directory))}"

    @property
    def started(self) -> float:
        address = self.address()
        return address.started if address is not None else 0.0

    def address(self) -> Address | None:
        """What the last master wrote, whether it lives or not."""
        try:
            return msgspec.json.decode(small_file(self.directory / ADDRESS), type=Address)
        except (OSError, *UNDECODABLE):
            return None

    def running(self) -> Address | None:
        """The address, if the master lives."""
        address = self.address()
        return address if address is not None and process_ticks(address.pid) == address.ticks else None

    def over(self) -> bool:
        return self.running() is None

    def result(self) -> JobStatus | None:
        """The last status of a job that ended in order."""
        try:
            return msgspec.msgpack.decode(small_file(self.directory / RESULT), type=JobStatus)
        except (OSError, *UNDECODABLE):
            return None

    def events(self) -> list[EventRecord]:
        """All that happened so far. A line that is being written is left for the next time; one that nobody
        can read is told, and does not hide the others."""
        found: list[EventRecord] = []
        for name in (EVENTS_BEFORE, EVENTS):
            try:
                lines = small_file(self.directory / name).splitlines(keepends=True)
            except OSError:
                continue
            for number, line in enumerate(lines, start=1):
                if line.endswith(b"\n"):
                    before = found[-1] if found else EventRecord(0, 0.0, "", "")
                    found.append(read_event(line) or _unreadable(before, f"line {number} of {name}"))
        return found

    def history(self) -> list[EventRecord]:
        return self.events()

    def absence(self) -> str:
        return (
            "its master ended without a result; it was killed, or the machine went down. "
            f"`elasticdl events {self.named}` and {self.where} tell the rest.\n{self._way_on()}"
        )

    def _way_on(self) -> str:
        """What is left of a job whose master is lost, and what to type."""
        address = self.address()
        if address is None:
            return ""
        try:
            spec = _spec_of(address)
        except UsageError:
            return ""
        command = {JobType.EVALUATION_ONLY: Command.EVALUATE, JobType.PREDICTION_ONLY: Command.PREDICT}.get(
            spec.job_type, Command.TRAIN
        )
        again = shlex.join(["elasticdl", str(command), *to_argv(spec, command)])
        type_this = f"\n  cd {shlex.quote(address.cwd)} && {again}"
        if command is not Command.TRAIN:
            return f"To do it again:{type_this}"
        if not spec.checkpoint_dir:
            return f"It was started without --checkpoint_dir. To begin again:{type_this}"
        found = newest_checkpoint(_seen_from(address.cwd, spec.checkpoint_dir))
        orphans = (
            f"Workers that still live train on for {spec.master_grace_seconds:.0f} s and write a checkpoint "
            "before they end."
        )
        if found is None:
            return f"{spec.checkpoint_dir} holds no checkpoint yet. {orphans} To begin again:{type_this}"
        step, path = found
        return f"A checkpoint of step {step} is in {path}. {orphans} To go on from there:{type_this}"

    def resize(self, workers: int | None) -> bool:
        return False

    def page(self) -> str:
        address = self.running()
        return address.page if address is not None else ""

    def report(self) -> bytes:
        try:
            return small_file(self.directory / REPORT_DATA)
        except OSError:
            return b""

    def audit_dir(self) -> Place:
        address = self.address()
        given = _spec_of(address).audit_dir if address is not None else ""
        if address is None or not given:
            raise UsageError(
                f"job {self.name} was started without --audit_dir, so its workers wrote nothing down."
            )
        return _seen_from(address.cwd, given)

    # ------------------------------------------------------------------------------------------------ logs

    def logs(self) -> list[str]:
        return list(self._logs())

    def log_lines(self, whose: str = "", *, follow: bool = False) -> Iterator[tuple[str, str]]:
        printed: dict[str, int] = {}
        for _ in clock.polls(LOG_SECONDS):
            over = not follow or self.running() is None
            for name, path in self._logs().items():
                if whose == name or (not whose and name != MASTER):
                    yield from ((name, line) for line in _new_lines(name, path, printed))
            if over:
                return

    def _logs(self) -> dict[str, Path]:
        """The logs of this run by name; those that are older than its master belong to an earlier one."""
        since = self.started - 1.0
        folder = self.directory / LOGS
        paths = [path for path in folder.glob("worker-*.log") if path.stat().st_mtime >= since]
        workers = {path.stem.removeprefix("worker-"): path for path in paths}
        found = {name: workers[name] for name in sorted(workers, key=int)}
        master = self.directory / MASTER_LOG
        return {**found, MASTER: master} if master.exists() else found

    # ------------------------------------------------------------------------------------- for its master

    def abandoned(self) -> Address | None:
        """What the last master wrote, if it ended without a result: its workers may live."""
        return self.address() if self.running() is None and self.result() is None else None

    def make_room(self) -> None:
        """See that a job can keep its files here, before anything begins."""
        try:
            Path.cwd()
        except FileNotFoundError:
            raise UsageError("the current directory was deleted. Change to one that exists.") from None
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._must_be_own()
            self._write(".room", b"x" * ROOM_BYTES)
            (self.directory / ".room").unlink()
        except OSError as error:
            raise UsageError(
                f"{self.directory}: the job cannot keep its files there: {error.strerror}. "
                "Name a directory with room that you may write to with --job_dir=DIR."
            ) from None

    def _must_be_own(self) -> None:
        """Who may write here could put a link in the place of a file, and read what is written through it, or
        a socket in the place of the master's. Of a directory that is ours the group loses that right."""
        found = self.directory.stat()
        if found.st_uid != os.geteuid() or found.st_mode & stat.S_IWOTH:
            whose = "is somebody else's" if found.st_uid != os.geteuid() else "can be written by everybody"
            raise UsageError(
                f"{self.directory} {whose}: the job's token would not be safe there. "
                "Name a directory of your own with --job_dir=DIR."
            )
        if found.st_mode & stat.S_IWGRP:
            self.directory.chmod(stat.S_IMODE(found.st_mode) & ~stat.S_IWGRP)

    def register(self, address: Address) -> None:
        """Announce a master; the result of an earlier run is no longer this job's."""
        for name in (RESULT, REPORT, REPORT_DATA):
            (self.directory / name).unlink(missing_ok=True)
        self._write(ADDRESS, msgspec.json.encode(address))

    def remove(self) -> None:
        """Forget a job that does not run; only where jobs have a directory of their own."""
        if self.directory.is_symlink() or self.directory.resolve().parent != jobs_root().resolve():
            raise UsageError(f"{self.directory} is not in {jobs_root()}; remove it yourself.")
        if self.running() is not None:
            raise UsageError(f"job {self.name} runs; stop it first: `elasticdl stop {self.named}`.")
        shutil.rmtree(self.directory)

    def write_result(self, status: JobStatus) -> None:
        self._write(RESULT, msgspec.msgpack.encode(status))

    def write_report(self, data: bytes, page: str) -> Path:
        self._write(REPORT_DATA, data)
        self._write(REPORT, page.encode())
        return self.directory / REPORT

    def _write(self, name: str, content: bytes) -> None:
        files.write(self.directory / name, content, private=True)


def _new_lines(name: str, path: Path, printed: dict[str, int]) -> list[str]:
    """Whole lines that came since the last time."""
    with path.open("rb") as log:
        log.seek(printed.get(name, 0))
        new = log.read()
    new = new[: new.rfind(b"\n") + 1]
    printed[name] = printed.get(name, 0) + len(new)
    return new.decode(errors="replace").splitlines()


def _unreadable(before: EventRecord, what: str) -> EventRecord:
    """In the place of an event."""
    return EventRecord(before.serial + 1, before.wall, NoteKind.WARNING, f"{what} cannot be read")


def _spec_of(address: Address) -> JobSpec:
    """The flags of a job as its files have them: nobody typed them just now, so there is no help to give."""
    if "-h" in address.flags or "--help" in address.flags:
        raise UsageError(f"{ADDRESS} of the job {address.job_name} does not hold the flags of a job.")
    return parse_job(Command.WORKER, address.flags).spec


def known_jobs(environ: Mapping[str, str] = os.environ) -> list[LocalJobFiles]:
    """Every job that left something in this user's state directory, the newest first."""
    root = jobs_root(environ)
    folders = sorted(root.iterdir()) if root.is_dir() else []
    found = ((job, job.address()) for job in map(LocalJobFiles, folders))
    known = [(job, address.started) for job, address in found if address is not None]
    return [job for job, _ in sorted(known, key=lambda pair: -pair[1])]


def _seen_from(directory: str, given: str) -> Place:
    """A path that was given to a job which began in that directory, or a URL."""
    where = place(given)
    return where if isinstance(where, Url) else Path(directory) / where


def newest_checkpoint(directory: Place) -> tuple[int, Place] | None:
    """The step and place of the newest checkpoint that was written whole, judged by its files only."""
    if isinstance(directory, Url):
        try:
            found = store(GLANCE_SECONDS).below(directory)
        except StorageError:
            return None
        done = ((_CHECKPOINT.fullmatch(one.parent.name), one) for one in found if one.name == "done")
        return max(((int(name[1]), one.parent) for name, one in done if name), default=None)
    try:
        names = ((_CHECKPOINT.fullmatch(path.name), path) for path in directory.iterdir())
        whole = [(int(name[1]), path) for name, path in names if name and (path / "done").exists()]
    except OSError:
        return None
    return max(whole, default=None)


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


def token_for(master: str, job_dir: str = "") -> str:
    """The token of the master at this address, if it is a local job of this user; empty otherwise."""
    host, _, end = master.rpartition(":")  # a port, or the path of a socket
    if host != "unix" and not _is_loopback(host.strip("[]")):
        return ""
    jobs = [LocalJobFiles(Path(job_dir))] if job_dir else known_jobs()
    for job in jobs:
        address = job.running()
        if address is not None and address.address.rpartition(":")[2] == end:
            return address.token
    return ""


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
    running = [f"{job.name} (runs)" for job in jobs if job.running() is not None]
    over = [f"{job.name} (over)" for job in jobs if job.running() is None]
    names = (running + over)[:SHOWN_JOBS]
    if len(jobs) <= SHOWN_JOBS:
        return f"Local jobs: {', '.join(names)}."
    return f"The newest of {len(jobs)} local jobs: {', '.join(names)}. `elasticdl jobs` lists them."
