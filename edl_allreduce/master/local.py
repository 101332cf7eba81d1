"""A job on this machine: the master in this process, workers as child processes, a table or plain lines."""

from __future__ import annotations

import asyncio
import dataclasses
import fcntl
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from edl_allreduce import clock, files, logs, outside
from edl_allreduce.cluster.base import Cluster, Found, Site
from edl_allreduce.cluster.choose import cluster_of
from edl_allreduce.cluster.known import Address
from edl_allreduce.cluster.pinned import pin
from edl_allreduce.cluster.processes import process_ticks, workers_of
from edl_allreduce.cluster.registry import LOGS, MASTER_LOG, SOCKET, LocalJobFiles, newest_checkpoint
from edl_allreduce.contract import EXIT_FAILED, EXIT_INTERRUPTED, JOB_TOKEN, MASTER_MARK
from edl_allreduce.core.deadlines import Deadlines
from edl_allreduce.core.job.lifecycle import Phase
from edl_allreduce.core.job.state import JobOptions, Result
from edl_allreduce.core.protocol import Command, NoteKind
from edl_allreduce.core.status import EventRecord, JobStatus
from edl_allreduce.errors import UsageError
from edl_allreduce.master import inheritance, outlet, report
from edl_allreduce.master.display import Display, can_draw
from edl_allreduce.master.history import History
from edl_allreduce.master.metrics import Metrics
from edl_allreduce.master.options import options_of
from edl_allreduce.master.shell import JobShell
from edl_allreduce.master.tracing import Tracing
from edl_allreduce.master.web.bundle import report_page
from edl_allreduce.master.web.feed import Feed, encode, in_common
from edl_allreduce.master.web.server import PageServer
from edl_allreduce.rpc.identity import SHORTEST_TOKEN
from edl_allreduce.rpc.server import MasterServer
from edl_allreduce.rpc.unix import UNIX
from edl_allreduce.spec import JobSpec, JobType, job_directory, to_argv
from edl_allreduce.storage.url import place
from edl_allreduce.web.guard import page_token, page_url

log = logging.getLogger(__name__)

REGISTER_SECONDS = 1.0
"""After which a master that found its disk full tries again to write down where it is."""

LOOPBACK = "127.0.0.1"
ANY = "0.0.0.0"
ORPHAN_SECONDS = 0.2
Judge = Callable[[str], str]
"""Gives the verdict of the audit on a directory, in words."""


def run_local_job(spec: JobSpec, judge: Judge | None = None) -> int:
    """Run the job in the foreground; returns the exit code."""
    # Until the loop listens to it: who closes the terminal does not mean the job.
    signal.signal(signal.SIGHUP, lambda *_: None)
    directory = job_directory(spec)
    LocalJobFiles(directory).make_room()
    with JobLock(directory), outlet.installed(_nobody_reads) as streams:
        configure_logging(
            spec, directory / MASTER_LOG, to_terminal=spec.logs_json or not can_draw(outside.console())
        )
        job = LocalJob(spec, judge=judge, streams=streams)
        result = asyncio.run(job.run())
        _tell_end(spec, result, job)
    return exit_code(result)


def _nobody_reads(why: str) -> None:
    log.warning("nobody reads what is printed any more (%s); this log goes on", why)


def _tell_end(spec: JobSpec, result: Result, job: LocalJob) -> None:
    failed, status = result.phase is Phase.FAILED, job.final
    end = f"{result.phase.value}: {outside.story(result.reason)}"
    places = {**_places(spec), "Report": job.report, "Notice": job.trouble}
    lines = report.summary(status, places) if status.step or not failed else []
    if result.path:
        lines.append(f"{what_is_written(spec)} in {outside.line(result.path)}")
    for line in [end, *lines]:
        log.info("%s", line, extra=None if spec.logs_json else logs.ONLY_FILES)
    for line in [] if spec.logs_json else lines if failed else [end, *lines]:
        print(line)
    if failed:  # last, where people look first
        sys.stdout.flush()
        print(end, file=sys.stderr)


def _places(spec: JobSpec) -> dict[str, str]:
    """What the job wrote beside its result."""
    newest = newest_checkpoint(place(spec.checkpoint_dir)) if spec.checkpoint_dir else None
    return {
        "Checkpoint": str(newest[1]) if newest is not None else "",
        "TensorBoard": spec.tensorboard_log_dir,
    }


def what_is_written(spec: JobSpec) -> str:
    return "The predictions are" if spec.job_type is JobType.PREDICTION_ONLY else "The trained model is"


def exit_code(result: Result) -> int:
    return {Phase.SUCCEEDED: 0, Phase.STOPPED: EXIT_INTERRUPTED}.get(result.phase, EXIT_FAILED)


class LocalJob:
    """Master and workers of one local job, in a directory that is locked and writable."""

    def __init__(
        self,
        spec: JobSpec,
        *,
        show: bool = True,
        judge: Judge | None = None,
        streams: tuple[outlet.Outlet, ...] = (),
    ) -> None:
        self.spec = spec
        self.directory = job_directory(spec)
        self._files = LocalJobFiles(self.directory)
        self._flags = to_argv(dataclasses.replace(spec, bind=LOOPBACK, port=0), "worker")
        self._mark = secrets.token_hex(16)
        self._earlier = self._files.abandoned()
        kept = self._earlier.token if self._earlier is not None and spec.num_workers == 0 else ""
        # Workers that were started by hand know the token of a master that was killed.
        self.token = _given_token() or kept or secrets.token_hex(16)
        self._address: str
        """Where it listens."""
        self._show = show
        self._judge = judge
        self._streams = streams
        self._interrupts = 0
        self.trouble = ""
        """What happened to the job's own files."""
        self.page = ""
        """Host and port of its page; empty without one."""
        self._registering: asyncio.Task[None] | None = None
        self.report = ""
        """Where its report is, once it is over."""
        self.feed: Feed
        self.job: JobShell
        self.final: JobStatus
        """How it ended."""

    async def run(self) -> Result:
        """Serve until the job is over."""
        with closing(History(self.directory, goes_on=self._earlier is not None)) as history:
            return await self._run(history)

    async def _run(self, history: History) -> Result:
        spec = self.spec
        check_port(spec.bind, spec.port)
        check_port(LOOPBACK, spec.typed.dashboard_port or 0, flag="dashboard_port", free="auto")
        cluster = self._cluster()

        known = self._files.events() if self._earlier is not None else []
        self.feed = Feed(self._seen, history=known, about=lambda: in_common(self.job.state.course))
        tracing = Tracing(spec.job_name, os.environ)
        metrics = Metrics(lambda: self.job.status(), lambda: self.job.traffic)
        for record in known:
            metrics.told(record)

        def on_event(event: EventRecord) -> None:
            self._keep(lambda: history.write(event))
            self.feed.tell(event)
            metrics.told(event)
            tracing.told(event)

        await self._part_with_orphans()
        found = await cluster.start()
        self.job = JobShell(self._options(found), cluster, on_event, last_serial=history.last_serial)
        left = inheritance.read_file(self.directory) if self._earlier is not None else None
        if left is not None:
            self.job.inherit(left.job, found.living)
        notary = inheritance.Notary(self._left, self._write_left)
        if known and spec.num_workers and not found.living:
            self.job.returned()
        if found.living:  # never on this machine; a scheduler elsewhere may keep workers without their master
            self.job.adopt(found, spec.num_workers)
        server = MasterServer(self.token, self.job.attend, self._answer)
        self._address = await self._listen(server)
        page = PageServer(self.feed, self._answer, page_token(self.token), metrics.render)
        self.page = await self._open_page(page)
        self.feed.start()
        metrics.start()
        notary.start()
        if not self._register():
            self._registering = asyncio.create_task(self._register_later())
        self._name_page()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupt)
        verdict = ""
        display = Display(self.job.status, show=self._show and not spec.logs_json)
        loop.add_signal_handler(signal.SIGHUP, self._hung_up, display)
        try:
            result = await self.job.run()
            verdict = await asyncio.to_thread(self._audit)
            return result
        finally:
            await display.close()
            metrics.close()
            await notary.close()
            await asyncio.to_thread(tracing.close)
            self.final = dataclasses.replace(self._described(self.job.status()), audit=verdict)
            self._keep(lambda: self._files.write_result(self.final))
            await page.stop()
            self._keep(self._write_report)
            await server.stop(1.0)

    async def _open_page(self, page: PageServer) -> str:
        """Host and port; empty when the job has no page. It is not encrypted, so it stays on this machine."""
        port = self.spec.typed.dashboard_port
        if port is None:
            return ""
        try:
            port = await page.start(LOOPBACK, port)
        except OSError as error:  # taken since it was looked at
            raise UsageError(f"--dashboard_port={port}: {error.strerror}. Choose another.") from error
        return f"{LOOPBACK}:{port}"

    def _name_page(self) -> None:
        """With the token only where nobody else reads along: a file may be open to others."""
        if not self.page or not self._show:
            return
        if sys.stdout.isatty() and not self.spec.logs_json:
            print(f"The job's page: {page_url(self.page, page_token(self.token))}", flush=True)
        else:
            log.info("page: http://%s; `elasticdl dashboard %s` opens it", self.page, self._files.named)

    def _left(self) -> inheritance.Left:
        return inheritance.Left(self.job.last_serial, self.job.leave())

    def _write_left(self, left: inheritance.Left) -> float:
        inheritance.write_file(self.directory, left)
        return 0.0

    def _seen(self) -> JobStatus:
        return self.final if self.job.over and hasattr(self, "final") else self._described(self.job.status())

    def _write_report(self) -> None:
        """Next to the job's other files, and where the user wants it."""
        data = encode(self.feed.update())
        page = report_page(data)
        self.report = str(self._files.write_report(data, page))
        if not self.spec.report:
            return
        path = Path(self.spec.report)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write(path, page.encode())
            self.report = str(path)
        except OSError as error:
            self.trouble = self.trouble or f"--report={path} cannot be written: {error.strerror}"

    def _keep(self, write: Callable[[], object]) -> None:
        """A full disk or a directory that somebody deleted must not end a healthy job."""
        try:
            write()
        except OSError as error:
            self._cannot_write(error)

    def _cannot_write(self, error: OSError) -> None:
        if not self.trouble:
            self.trouble = (
                f"{self.directory} can no longer be written ({error.strerror}); `elasticdl status` and "
                "`elasticdl events` will not know everything"
            )
            self.job.note(NoteKind.NOTICE, self.trouble)

    def _audit(self) -> str:
        if self._judge is None or not self.spec.audit_dir:
            return ""
        return self._judge(self.spec.audit_dir)

    def _options(self, found: Found) -> JobOptions:
        """A master that takes over from one that was killed lets its ring report first."""
        options = options_of(self.spec)
        by_hand = self._earlier is not None and self.spec.num_workers == 0
        if not (by_hand or found.living):
            return options
        return dataclasses.replace(options, recover_until=clock.now() + options.deadlines.rejoin)

    async def _part_with_orphans(self) -> None:
        """Workers of a master that was killed train on for a while: two rings must not share a directory.

        They are asked to leave, and write a checkpoint if the job has a place for one. It goes on there.
        """
        if self._earlier is None or self.spec.num_workers == 0:
            return
        orphans = workers_of(self._earlier.mark)
        if not orphans:
            return
        log.warning(
            "%d workers of an earlier master of this job still run; they are asked to leave first (%s)",
            len(orphans), ", ".join(map(str, orphans)),
        )  # fmt: skip
        number = signal.SIGTERM
        deadline = clock.now() + Deadlines(self.spec.failure_detection_seconds).rejoin
        while orphans:
            for pid in orphans:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            while orphans and clock.now() < deadline:
                await asyncio.sleep(ORPHAN_SECONDS)
                orphans = workers_of(self._earlier.mark)
            number, deadline = signal.SIGKILL, clock.now() + ORPHAN_SECONDS

    def _cluster(self) -> Cluster:
        own = pin(self.spec, self.directory) if self.spec.num_workers else {}
        environment = {JOB_TOKEN: self.token, MASTER_MARK: self._mark, **own}
        return cluster_of(self.spec, Site(self._worker_argv, self.directory / LOGS, environment))

    async def _listen(self, server: MasterServer) -> str:
        """Those who need no port get none: a socket in the job's directory is for its owner only."""
        spec = self.spec
        try:
            if spec.num_workers and not spec.port and spec.bind == LOOPBACK:
                path = self.directory.resolve() / SOCKET
                await server.start_here(path)
                return f"{UNIX}{path}"
            port = await server.start(spec.bind, spec.port)
        except OSError as error:
            raise UsageError(f"{error} Choose another with --port.") from error
        return f"{LOOPBACK if spec.bind == ANY else spec.bind}:{port}"

    def _worker_argv(self, worker_id: int) -> list[str]:
        place = [f"--master_addr={self._address}", f"--worker_id={worker_id}"]
        return ["-m", "edl_allreduce.worker.main", *self._flags, *place]

    def _interrupt(self) -> None:
        self._interrupts += 1
        if self._interrupts == 1:
            self.job.stop("interrupted")
            self.job.note(NoteKind.STOP, "once more (Ctrl-C or SIGTERM) kills the workers")
        else:
            self.job.kill_all()

    def _hung_up(self, display: Display) -> None:
        """The terminal was closed. Who wants the job to end says so with Ctrl-C or `elasticdl stop`."""
        display.give_up_table()
        for stream in self._streams:
            if stream.isatty():  # a file goes on
                stream.give_up()
        log.info("the terminal was closed; the job goes on, and this log with it")

    async def _answer(self, command: Command) -> JobStatus:
        return self._described(await self.job.answer(command))

    def _described(self, status: JobStatus) -> JobStatus:
        return dataclasses.replace(status, job_dir=str(self.directory.resolve()), flags=self._flags)

    def _register(self) -> bool:
        """Write down where this master is. One that comes back to its job does without for a while: a full
        disk must not end what its workers go on with."""
        try:
            self._files.register(self._own_address())
        except OSError as error:
            if self._earlier is None:
                raise UsageError(
                    f"{self.directory} cannot be written: {error.strerror}. Make room."
                ) from error
            self._cannot_write(error)
            return False
        return True

    async def _register_later(self) -> None:
        await clock.SYSTEM.rest(REGISTER_SECONDS)
        while not self._register():
            await clock.SYSTEM.rest(REGISTER_SECONDS)

    def _own_address(self) -> Address:
        return Address(
            job_name=self.spec.job_name,
            address=self._address,
            token=self.token,
            pid=os.getpid(),
            ticks=process_ticks(os.getpid()),
            started=clock.wall(),
            cwd=str(Path.cwd()),
            flags=self._flags,
            page=self.page,
            mark=self._mark,
        )


def _given_token() -> str:
    token = os.environ.get(JOB_TOKEN, "")
    if token and len(token) < SHORTEST_TOKEN:
        raise UsageError(
            f"{JOB_TOKEN} has {len(token)} characters; at least {SHORTEST_TOKEN} are needed, made by chance: "
            "`python -c 'import secrets; print(secrets.token_hex(16))'`. Without it the master makes one."
        )
    return token


class JobLock:
    """One running job per directory: the lock ends with the process, whatever ends it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __enter__(self) -> None:
        self._descriptor = os.open(self._directory / "lock", os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            name = LocalJobFiles(self._directory).name
            raise UsageError(
                f"a job named {name} is running already, with its files in {self._directory}. Stop it with "
                f"`elasticdl stop --job_name={name}`, or choose another --job_name (and --job_dir)."
            ) from None

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def check_port(host: str, port: int, *, flag: str = "port", free: str = "0") -> None:
    """Before anything begins, and before gRPC tries: it would print lines of its own about a taken port."""
    if not port:
        return
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host.strip("[]"), port))
    except OSError as error:
        raise UsageError(
            f"--{flag}={port}: the master cannot listen on {host}:{port}: {error.strerror}. "
            f"Choose another port; {free} takes a free one."
        ) from None


def configure_logging(spec: JobSpec, path: Path, *, to_terminal: bool) -> None:
    """The master's log goes to a file, to --log_file_path, and to the terminal where no table is drawn."""
    files = {"--job_dir": str(path), "--log_file_path": spec.log_file_path}
    logs.configure(
        str(spec.log_level), "master", files=files, to_terminal=to_terminal, as_json=spec.logs_json
    )
