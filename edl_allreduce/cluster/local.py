"""Workers as processes of this machine."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from edl_allreduce.cluster.base import DryRun, Found, News, Site
from edl_allreduce.contract import EXIT_INVALID
from edl_allreduce.core.causes import Cause
from edl_allreduce.core.job.inbox import Ended
from edl_allreduce.core.status import WorkerFacts

TAIL_BYTES = 4096
"""Of a worker's log, for the words that tell why it ended: a traceback fits."""

FROM_OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


class LocalCluster:
    """Each worker has a session of its own, so that Ctrl-C in a terminal reaches the master only."""

    head_start = 0.5

    def __init__(self, site: Site) -> None:
        self._site = site
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._ends: asyncio.Queue[Ended] = asyncio.Queue()
        self._watchers: set[asyncio.Task[None]] = set()
        # TensorFlow's temporary files would outlive every worker that is killed. The name says of which job
        # they are: whoever starts it again removes what a killed master could not.
        self._prefix = f"elasticdl-{hashlib.sha256(bytes(site.log_dir.resolve())).hexdigest()[:12]}-"
        self._scratch = tempfile.TemporaryDirectory(prefix=self._prefix, ignore_cleanup_errors=True)

    def log_path(self, worker_id: int) -> Path:
        return self._site.log_dir / f"worker-{worker_id}.log"

    def _scratch_of(self, worker_id: int) -> Path:
        return Path(self._scratch.name) / f"worker-{worker_id}"

    def plan(self, worker_id: int) -> DryRun:
        return DryRun(commands=((sys.executable, *self._site.argv_of(worker_id)),))

    async def start(self) -> Found:
        """Workers of an earlier master are not ours: they end with it, or were asked to leave."""
        own = Path(self._scratch.name)
        for path in own.parent.glob(f"{self._prefix}*"):
            if path != own:
                shutil.rmtree(path, ignore_errors=True)  # nothing waits for it
        return Found()

    async def launch(self, worker_id: int) -> None:
        self._site.log_dir.mkdir(parents=True, exist_ok=True)
        scratch = self._scratch_of(worker_id)
        scratch.mkdir(parents=True, exist_ok=True)  # somebody may have tidied up
        (command,) = self.plan(worker_id).commands
        # The worker writes its own file: a pipe would end with the master, and the worker with it.
        with self.log_path(worker_id).open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "TMPDIR": str(scratch), **self._site.environment},
            )
        self._processes[worker_id] = process
        watcher = asyncio.create_task(self._watch(worker_id, process))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)

    async def _watch(self, worker_id: int, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        del self._processes[worker_id]
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
        self._scratch.cleanup()


def classify(code: int) -> tuple[Cause, str]:
    """What an exit status says about why a worker ended."""
    if code == 0:
        return Cause.FINISHED, "exited with 0"
    if code == EXIT_INVALID:
        return Cause.INVALID, "could not begin"
    if code < 0:
        cause = Cause.DISRUPTED if -code in FROM_OUTSIDE else Cause.CRASHED
        return cause, f"was ended by {_signal_name(-code)}"
    return Cause.CRASHED, f"exited with {code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
