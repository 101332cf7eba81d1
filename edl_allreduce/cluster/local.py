"""Workers as processes of this machine."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Protocol

from edl_allreduce.cluster import gpus
from edl_allreduce.cluster.base import DryRun, Found, News, Site
from edl_allreduce.contract import EXIT_INVALID, EXIT_TERMINATED
from edl_allreduce.core.causes import Cause
from edl_allreduce.core.job.inbox import Ended
from edl_allreduce.core.status import WorkerFacts

TAIL_BYTES = 4096
"""Of a worker's log, for the words that tell why it ended: a traceback fits."""

FROM_OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


class Process(Protocol):
    """A worker, as its cluster sees it."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    async def wait(self) -> int: ...
    def send_signal(self, number: int, /) -> None: ...


async def start_process(command: Sequence[str], log: BinaryIO, environment: Mapping[str, str]) -> Process:
    """In a session of its own; it prints into the log."""
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
        env=environment,
    )


class LocalCluster:
    """Each worker has a session of its own, so that Ctrl-C in a terminal reaches the master only."""

    head_start = 0.5

    def __init__(self, site: Site) -> None:
        self._site = site
        self._processes: dict[int, Process] = {}
        self._gpus = gpus.on_this_machine(os.environ)
        self._gpu_of: dict[int, str] = {}
        self._ends: asyncio.Queue[Ended] = asyncio.Queue()
        self._watchers: set[asyncio.Task[None]] = set()
        # TensorFlow's temporary files would outlive every worker that is killed. The name says of which job
        # they are: whoever starts it again removes what a killed master could not.
        self._scratch = Scratch(
            f"elasticdl-{hashlib.sha256(bytes(site.log_dir.resolve())).hexdigest()[:12]}-"
        )

    def log_path(self, worker_id: int) -> Path:
        return self._site.log_dir / f"worker-{worker_id}.log"

    def _scratch_of(self, worker_id: int) -> Path:
        return self._scratch.path / f"worker-{worker_id}"

    def plan(self, worker_id: int) -> DryRun:
        return DryRun(commands=((sys.executable, *self._site.argv_of(worker_id)),))

    async def start(self) -> Found:
        """Workers of an earlier master are not ours: they end with it, or were asked to leave."""
        self._scratch.remove_abandoned()
        return Found()

    async def launch(self, worker_id: int) -> None:
        self._site.log_dir.mkdir(parents=True, exist_ok=True)
        scratch = self._scratch_of(worker_id)
        scratch.mkdir(parents=True, exist_ok=True)  # somebody may have tidied up
        (command,) = self.plan(worker_id).commands
        gpu = gpus.least_used(self._gpus, self._gpu_of.values())
        if gpu is not None:
            self._gpu_of[worker_id] = gpu
        environment = {
            **os.environ,
            "TMPDIR": str(scratch),
            **gpus.environment(gpu, os.environ),
            **self._site.environment,
        }
        try:
            # The worker writes its own file: a pipe would end with the master, and the worker with it.
            with self.log_path(worker_id).open("wb") as log:
                process = await start_process(command, log, environment)
        except BaseException:
            self._gpu_of.pop(worker_id, None)  # it never starts, so it never ends
            raise
        self._processes[worker_id] = process
        watcher = asyncio.create_task(self._watch(worker_id, process))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)

    async def _watch(self, worker_id: int, process: Process) -> None:
        code = await process.wait()
        del self._processes[worker_id]
        self._gpu_of.pop(worker_id, None)
        await self._ends.put(Ended(worker_id, *classify(code)))  # first: a ring waits for this news
        shutil.rmtree(self._scratch_of(worker_id), ignore_errors=True)

    async def terminate(self, worker_id: int) -> None:
        self._signal(worker_id, signal.SIGTERM)

    async def kill(self, worker_id: int) -> None:
        self._signal(worker_id, signal.SIGKILL)

    def _signal(self, worker_id: int, number: signal.Signals) -> None:
        process = self._processes.get(worker_id)
        if process is not None and process.returncode is None:
            process.send_signal(number)

    async def next_news(self) -> News:
        return await self._ends.get()

    def facts(self, worker_id: int) -> WorkerFacts:
        process = self._processes.get(worker_id)
        return WorkerFacts(pid=process.pid if process is not None else 0)

    async def last_words(self, worker_id: int) -> str:
        return await asyncio.to_thread(self._tail, worker_id)

    def _tail(self, worker_id: int) -> str:
        try:
            with self.log_path(worker_id).open("rb") as log:
                log.seek(0, os.SEEK_END)
                log.seek(max(0, log.tell() - TAIL_BYTES))
                return log.read().decode(errors="replace")
        except OSError:
            return ""

    async def close(self) -> None:
        for worker_id in list(self._processes):
            self._signal(worker_id, signal.SIGKILL)
        while self._watchers:
            await asyncio.wait(self._watchers)
        self._scratch.close()


class Scratch:
    """A temporary directory that is locked as long as this process lives.

    Containers that share /tmp may have jobs at the same path, so a name does not say who uses it.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._lock: int | None = None
        while True:
            self._directory = tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
            self.path = Path(self._directory.name)
            try:
                self._lock = _lock(self.path)
            except (BlockingIOError, FileNotFoundError):  # taken for abandoned before it was locked
                self._directory.cleanup()
                continue
            except OSError:  # a file system without locks: nobody removes what may be in use
                pass
            return

    def remove_abandoned(self) -> None:
        """Those with the same prefix whose process is gone."""
        for path in self.path.parent.glob(f"{self._prefix}*"):
            with suppress(OSError):
                lock = _lock(path)
                shutil.rmtree(path, ignore_errors=True)  # nothing waits for it
                os.close(lock)

    def close(self) -> None:
        self._directory.cleanup()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _lock(directory: Path) -> int:
    """A descriptor that holds the directory's lock; raises when somebody else does, or it is gone."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        directory.stat()
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def classify(code: int) -> tuple[Cause, str]:
    """What an exit status says about why a worker ended."""
    if code == 0:
        return Cause.FINISHED, "exited with 0"
    if code == EXIT_INVALID:
        return Cause.INVALID, "could not begin"
    if code == EXIT_TERMINATED:
        return Cause.DISRUPTED, "was told to leave"
    if code < 0:
        cause = Cause.DISRUPTED if -code in FROM_OUTSIDE else Cause.CRASHED
        return cause, f"was ended by {_signal_name(-code)}"
    return Cause.CRASHED, f"exited with {code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
