"""Nobody starts workers but people: a master with --num_workers=0 serves those that come."""

from __future__ import annotations

import asyncio

from edl_allreduce.cluster.base import Ended


class ManualCluster:
    """Starts nothing, ends nothing, and hears of no end: a worker's stream tells all that can be known."""

    head_start = 0.0

    async def launch(self, worker_id: int) -> None:
        raise AssertionError("a master with --num_workers=0 wants no worker to be started")

    async def terminate(self, worker_id: int) -> None:
        """Not ours to end."""

    async def kill(self, worker_id: int) -> None:
        """Not ours to end; who is evicted hears it when it speaks again."""

    async def next_end(self) -> Ended:
        await asyncio.Event().wait()
        raise AssertionError("nothing ends here")

    def identity(self, worker_id: int) -> int:
        return 0

    def condition(self, worker_id: int) -> str:
        return ""

    def last_words(self, worker_id: int) -> str:
        return ""

    async def close(self) -> None:
        """Nothing is left."""
