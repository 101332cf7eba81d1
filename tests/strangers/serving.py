"""A master's server in a process of its own, so that its memory, threads and descriptors can be counted.

`python serving.py` listens, prints its port, and answers whoever has the token, until its input ends.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

from edl_allreduce.core import protocol
from edl_allreduce.core.status import JobStatus
from edl_allreduce.rpc.server import MasterServer

TOKEN = "the token of this job"


async def attend(
    requests: AsyncIterator[protocol.FromWorker], peer: str
) -> AsyncIterator[protocol.FromMaster]:
    async for _ in requests:
        yield protocol.Welcome()


async def answer(command: protocol.Command) -> JobStatus:
    return JobStatus("safe", "Training", 1, 1, 1, 0, 0, 0.0, 0.0, 0.0, "", 0.0, [], [])


async def serve() -> None:
    server = MasterServer(TOKEN, attend, answer)
    print(await server.start("127.0.0.1", 0), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(0)


if __name__ == "__main__":
    asyncio.run(serve())
