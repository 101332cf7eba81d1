"""A real master whose workers somebody else plays: what it wants started and ended goes to stdout as
JSON, one object per line; the numbers of workers that ended come from stdin."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import Any

from edl_allreduce import clock
from edl_allreduce.cluster.base import DryRun, Found, News
from edl_allreduce.core import events
from edl_allreduce.core.causes import Cause
from edl_allreduce.core.deadlines import Deadlines
from edl_allreduce.core.job.inbox import Ended
from edl_allreduce.core.job.state import JobOptions
from edl_allreduce.core.status import EventRecord, WorkerFacts
from edl_allreduce.master.shell import JobShell
from edl_allreduce.rpc.server import MasterServer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--token", required=True)
    parser.add_argument("--failure_detection_seconds", type=float, default=10.0)
    flags = parser.parse_args()
    asyncio.run(_serve(flags))


async def _serve(flags: argparse.Namespace) -> None:
    options = JobOptions(
        "benchmark",
        num_workers=flags.workers,
        min_workers=1,
        cool_down=60.0,  # begin with all of them
        deadlines=Deadlines(flags.failure_detection_seconds),
        crash_budget=10**9,
    )
    shell = JobShell(options, PipedCluster(), _told)
    server = MasterServer(flags.token, shell.attend, shell.answer)
    _say(port=await server.start("127.0.0.1", 0))
    await shell.run()


def _say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def _told(record: EventRecord) -> None:
    if record.kind == events.RingPlanned.kind:
        _say(planned=record.event["generation"], size=len(record.event["workers"]), at=clock.now())


class PipedCluster:
    """Somebody at the other end of the pipes starts and ends workers."""

    head_start = 0.0

    def __init__(self) -> None:
        self._lines: asyncio.StreamReader | None = None

    def plan(self, worker_id: int) -> DryRun:
        return DryRun()

    async def start(self) -> Found:
        return Found()

    async def launch(self, worker_id: int) -> None:
        _say(launch=worker_id)

    async def terminate(self, worker_id: int) -> None:
        _say(kill=worker_id)

    async def kill(self, worker_id: int) -> None:
        _say(kill=worker_id)

    async def next_news(self) -> News:
        if self._lines is None:
            self._lines = asyncio.StreamReader()
            reading = asyncio.StreamReaderProtocol(self._lines)
            await asyncio.get_running_loop().connect_read_pipe(lambda: reading, sys.stdin)
        line = await self._lines.readline()
        if not line:
            raise SystemExit
        return Ended(int(line), Cause.DISRUPTED, "was killed")

    def facts(self, worker_id: int) -> WorkerFacts:
        return WorkerFacts()

    async def last_words(self, worker_id: int) -> str:
        return ""

    async def close(self) -> None:
        """Nothing is left."""


if __name__ == "__main__":
    main()
