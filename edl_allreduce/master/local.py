"""A job on this machine: the master in this process, workers as child processes, a table or plain lines."""

from __future__ import annotations

import asyncio
import dataclasses
import fcntl
import logging
import os
import secrets
import signal
import sys
from pathlib import Path

import msgspec

from edl_allreduce import clock
from edl_allreduce.cluster.base import Cluster
from edl_allreduce.cluster.local import LocalCluster
from edl_allreduce.cluster.manual import ManualCluster
from edl_allreduce.cluster.registry import EVENTS, Address, LocalJobFiles, process_ticks
from edl_allreduce.core.deadlines import Deadlines
from edl_allreduce.errors import UsageError
from edl_allreduce.master.display import make_display
from edl_allreduce.master.job import Job, JobOptions, Phase, Result, event_line
from edl_allreduce.master.task_job import job_for
from edl_allreduce.rpc.messages import Command, EventRecord, JobStatus
from edl_allreduce.rpc.server import MasterServer
from edl_allreduce.spec import JobSpec, JobType, job_directory, to_argv

TOKEN = "EDL_JOB_TOKEN"
INTERRUPTED = 130
LOOPBACK = "127.0.0.1"
ANY = "0.0.0.0"


def run_local_job(spec: JobSpec, argv: list[str]) -> int:
    """Run the job in the foreground; returns the exit code."""
    directory = job_directory(spec)
    directory.mkdir(parents=True, exist_ok=True)
    configure_logging(spec, directory / "master.log", to_terminal=not sys.stdout.isatty())
    result = asyncio.run(LocalJob(spec).run())
    print(f"{result.phase.value}: {result.reason}", file=sys.stderr if result.phase is Phase.FAILED else None)
    if result.path:
        print(f"{what_is_written(spec)} in {result.path}")
    return exit_code(result)


def what_is_written(spec: JobSpec) -> str:
    return "The predictions are" if spec.job_type is JobType.PREDICTION_ONLY else "The trained model is"


def exit_code(result: Result) -> int:
    return {Phase.SUCCEEDED: 0, Phase.STOPPED: INTERRUPTED}.get(result.phase, 1)


class LocalJob:
    """Master and workers of one local job."""

    def __init__(self, spec: JobSpec, *, show: bool = True) -> None:
        self.spec = spec
        self.directory = job_directory(spec)
        self._files = LocalJobFiles(self.directory)
        self._flags = to_argv(dataclasses.replace(spec, bind=LOOPBACK, port=0), "worker")
        self.token = os.environ.get(TOKEN) or secrets.token_hex(16)
        self._show = show
        self._interrupts = 0
        self.job: Job

    async def run(self) -> Result:
        """Serve until the job is over."""
        with (
            JobLock(self.directory, self.spec.job_name),
            (self.directory / EVENTS).open("wb") as events,
        ):
            return await self._run(events.fileno())

    async def _run(self, events: int) -> Result:
        spec = self.spec
        cluster = self._cluster()

        def on_event(event: EventRecord) -> None:
            os.write(events, event_line(event))

        self.job = job_for(spec, options_of(spec), cluster, on_event)
        server = MasterServer(self.token, self.job.attend, self._answer)
        try:
            self.port = await server.start(spec.bind, spec.port)
        except OSError as error:
            raise UsageError(f"{error} Choose another with --port.") from error
        self._register()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupt)
        display = make_display(self.job, self._show)
        try:
            return await self.job.run()
        finally:
            await display.close()
            self._files.write_result(self._described(self.job.status()))
            await server.stop(1.0)

    def _cluster(self) -> Cluster:
        if self.spec.num_workers == 0:
            return ManualCluster()
        return LocalCluster(self._worker_argv, self.directory / "logs", {TOKEN: self.token})

    @property
    def _address(self) -> str:
        return f"{LOOPBACK if self.spec.bind == ANY else self.spec.bind}:{self.port}"

    def _worker_argv(self, worker_id: int) -> list[str]:
        place = [f"--master_addr={self._address}", f"--worker_id={worker_id}"]
        return ["-m", "edl_allreduce.worker.main", *self._flags, *place]

    def _interrupt(self) -> None:
        self._interrupts += 1
        if self._interrupts == 1:
            self.job.stop("interrupted; once more kills the workers")
        else:
            self.job.kill_all()

    async def _answer(self, command: Command) -> JobStatus:
        return self._described(await self.job.answer(command))

    def _described(self, status: JobStatus) -> JobStatus:
        return msgspec.structs.replace(status, job_dir=str(self.directory.resolve()), flags=self._flags)

    def _register(self) -> None:
        address = Address(
            job_name=self.spec.job_name,
            address=self._address,
            token=self.token,
            pid=os.getpid(),
            ticks=process_ticks(os.getpid()),
            started=clock.wall(),
            cwd=str(Path.cwd()),
            flags=self._flags,
        )
        self._files.register(address)


class JobLock:
    """One running job per name: the lock ends with the process, whatever ends it."""

    def __init__(self, directory: Path, job_name: str) -> None:
        self._directory = directory
        self._job_name = job_name

    def __enter__(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self._directory / "lock", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise UsageError(
                f"a job named {self._job_name} is running already. Stop it with "
                f"`elasticdl stop --job_name={self._job_name}`, or choose another --job_name."
            ) from None

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def options_of(spec: JobSpec) -> JobOptions:
    return JobOptions(
        job_name=spec.job_name,
        num_workers=spec.num_workers,
        min_workers=spec.min_workers,
        cool_down=spec.cool_down_seconds,
        deadlines=Deadlines(spec.failure_detection_seconds),
        crash_budget=spec.max_worker_crashes,
        global_batch=spec.global_batch_size,
        max_bad_records=spec.max_bad_records,
    )


def configure_logging(spec: JobSpec, path: Path, *, to_terminal: bool) -> None:
    """The master's log goes to a file, and to the terminal where no table is drawn."""
    handlers: list[logging.Handler] = [logging.FileHandler(path)]
    if to_terminal:
        handlers.append(logging.StreamHandler(sys.stdout))
    logging.basicConfig(
        level=str(spec.log_level),
        format="%(asctime)s %(levelname)s [master] %(message)s",
        handlers=handlers,
        force=True,
    )
