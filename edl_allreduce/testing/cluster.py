"""A cluster in memory: it starts nothing, remembers everything, and ends workers when a test says so."""

from __future__ import annotations

import asyncio

from edl_allreduce.cluster.base import DryRun, Found, News
from edl_allreduce.core.causes import Cause
from edl_allreduce.core.job.inbox import Ended, Note
from edl_allreduce.core.protocol import NoteKind
from edl_allreduce.core.status import WorkerFacts


class FakeCluster:
    """The `Cluster` protocol. `refuses` is what starting a worker meets, `words` what logs end with."""

    def __init__(self, head_start: float = 0.0) -> None:
        self.head_start = head_start
        self.refuses: Exception | None = None
        self.words: dict[int, str] = {}
        self.found = Found()
        self.running: set[int] = set()
        self.launched: list[int] = []
        self.terminated: list[int] = []
        self.killed: list[int] = []
        self.closed = False
        self._news: asyncio.Queue[News] = asyncio.Queue()

    # ---------------------------------------------------------------------------------- what tests say

    def end(self, worker_id: int, cause: Cause = Cause.DISRUPTED, text: str = "was killed") -> None:
        """A worker is over."""
        self.running.discard(worker_id)
        self._news.put_nowait(Ended(worker_id, cause, text))

    def note(self, kind: NoteKind, text: str) -> None:
        self._news.put_nowait(Note(kind, text))

    # ----------------------------------------------------------------------------------- what masters do

    def plan(self, worker_id: int) -> DryRun:
        return DryRun(commands=(("worker", str(worker_id)),))

    async def start(self) -> Found:
        return self.found

    async def launch(self, worker_id: int) -> None:
        self.launched.append(worker_id)
        if self.refuses is not None:
            raise self.refuses
        self.running.add(worker_id)

    async def terminate(self, worker_id: int) -> None:
        self.terminated.append(worker_id)

    async def kill(self, worker_id: int) -> None:
        self.killed.append(worker_id)
        if worker_id in self.running:
            self.end(worker_id)

    async def next_news(self) -> News:
        return await self._news.get()

    def facts(self, worker_id: int) -> WorkerFacts:
        return WorkerFacts(
            pid=10_000 + worker_id if worker_id in self.running else 0, name=f"worker-{worker_id}"
        )

    async def last_words(self, worker_id: int) -> str:
        return self.words.get(worker_id, "")

    async def close(self) -> None:
        self.closed = True
        self.running.clear()
