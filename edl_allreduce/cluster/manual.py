"""Nobody starts workers but people: a master with --num_workers=0 serves those that come."""

from __future__ import annotations

import asyncio

from edl_allreduce.cluster.base import DryRun, Found, News
from edl_allreduce.core.status import WorkerFacts


class ManualCluster:
    """Starts nothing, ends nothing, and hears of no end: a worker's stream tells all that can be known."""

    head_start = 0.0

    def plan(self, worker_id: int) -> DryRun:
        return DryRun()

    async def start(self) -> Found:
        return Found()

    async def launch(self, worker_id: int) -> None:
        raise AssertionError("a master with --num_workers=0 wants no worker to be started")

    async def terminate(self, worker_id: int) -> None:
        """Not ours to end."""

    async def kill(self, worker_id: int) -> None:
        """Not ours to end; who is evicted hears it when it speaks again."""

    async def next_news(self) -> News:
        await asyncio.Event().wait()
        raise AssertionError("nothing happens here")

    def facts(self, worker_id: int) -> WorkerFacts:
        return WorkerFacts()

    async def last_words(self, worker_id: int) -> str:
        return ""

    async def close(self) -> None:
        """Nothing is left."""
