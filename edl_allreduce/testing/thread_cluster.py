"""Workers as threads of this process: the real master, attendants and engines without network or processes.

Only the ring is a fake (`fake_ring`) and the trainer is NumPy's, so a whole elastic job takes a second. The
master's shell and the streams live in one asyncio loop, each worker in threads of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING

from edl_allreduce.core import protocol
from edl_allreduce.core.causes import Cause
from edl_allreduce.core.deadlines import Deadlines
from edl_allreduce.core.protocol import Seat
from edl_allreduce.testing.cluster import FakeCluster
from edl_allreduce.testing.fake_ring import FakeRing, Meeting
from edl_allreduce.worker.attendant import Attendant
from edl_allreduce.worker.loop.orders import Ending

if TYPE_CHECKING:
    from edl_allreduce.master.shell import JobShell


class Died(BaseException):
    """Raised in a worker's thread: it ends as a process does that is killed."""


@dataclass
class ThreadWorker:
    """One worker; the test gives it an engine in `ThreadCluster.begin`."""

    worker_id: int
    attendant: Attendant
    ring: FakeRing
    streams: list[ThreadStream]
    ending: Ending | None = None
    error: BaseException | None = None
    dead: bool = False

    def check(self) -> None:
        """To be called while it computes: a worker that was killed goes no further."""
        if self.dead:
            raise Died


CAUSES = {
    Ending.RELEASED: Cause.FINISHED,
    Ending.LEFT: Cause.DRAINED,
    Ending.EVICTED: Cause.SILENT,
    Ending.ABANDONED: Cause.CRASHED,
}

Begin = Callable[[ThreadWorker], Callable[[], Ending]]
"""Prepares a worker, says that it is ready, and gives what is to be run."""


class ThreadCluster(FakeCluster):
    """Starts a thread where others start a process."""

    def __init__(self, begin: Begin) -> None:
        super().__init__()
        self.meeting = Meeting()
        self.workers: dict[int, ThreadWorker] = {}
        self.shell: JobShell
        """The master whose workers these are; set before it runs."""
        self._begin = begin

    async def launch(self, worker_id: int) -> None:
        await super().launch(worker_id)
        loop = asyncio.get_running_loop()
        streams: list[ThreadStream] = []

        def dial(hello: protocol.Hello) -> ThreadStream:
            streams.append(ThreadStream(loop, self.shell, hello))
            return streams[-1]

        attendant = Attendant(
            dial,
            Seat(f"thread-{worker_id}", worker_id, "127.0.0.1"),
            deadlines=Deadlines(),
            master_grace=5.0,
            end=lambda code: None,
        )
        worker = ThreadWorker(worker_id, attendant, self.meeting.ring(), streams)
        self.workers[worker_id] = worker
        threading.Thread(target=self._run, args=(worker, loop), daemon=True).start()

    async def terminate(self, worker_id: int) -> None:
        await super().terminate(worker_id)
        self.workers[worker_id].attendant.drain()

    async def kill(self, worker_id: int) -> None:
        """Its connections end at once; it stops computing at its next `check`."""
        self.killed.append(worker_id)
        worker = self.workers[worker_id]
        if worker_id in self.running and not worker.dead:
            worker.dead = True
            self.meeting.break_ring(worker.ring.generation, f"worker {worker_id} is gone")
            for stream in worker.streams:
                stream.close()
            self.end(worker_id)

    def _run(self, worker: ThreadWorker, loop: asyncio.AbstractEventLoop) -> None:
        worker.attendant.start()
        try:
            worker.ending = self._begin(worker)()
            cause, text = CAUSES[worker.ending], worker.ending.value
        except BaseException as error:  # noqa: BLE001  as a process would: the cluster tells it
            worker.error = None if isinstance(error, Died) else error
            cause, text = Cause.CRASHED, repr(error)
        worker.attendant.close()
        if not worker.dead:
            worker.attendant.wait_closed(1.0)
            loop.call_soon_threadsafe(self.end, worker.worker_id, cause, text)


class ThreadStream:
    """A worker's connection to a master in the same process; see `worker.attendant.Stream`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, shell: JobShell, hello: protocol.Hello) -> None:
        self.clean = False
        self._loop = loop
        self._to_master: asyncio.Queue[protocol.FromWorker | None] = asyncio.Queue()
        self._to_worker: SimpleQueue[protocol.FromMaster | None] = SimpleQueue()
        self._served: Future[None] = asyncio.run_coroutine_threadsafe(self._serve(shell, hello), loop)

    def send(self, message: protocol.FromWorker) -> None:
        self._loop.call_soon_threadsafe(self._to_master.put_nowait, message)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._to_master.put_nowait, None)

    def __iter__(self) -> Iterator[protocol.FromMaster]:
        while (message := self._to_worker.get()) is not None:
            yield message

    async def _serve(self, shell: JobShell, hello: protocol.Hello) -> None:
        try:
            async for message in shell.attend(self._requests(hello), "a thread"):
                self._to_worker.put(message)
            self.clean = True
        finally:
            self._to_worker.put(None)

    async def _requests(self, hello: protocol.Hello) -> AsyncIterator[protocol.FromWorker]:
        yield hello
        while (message := await self._to_master.get()) is not None:
            yield message
