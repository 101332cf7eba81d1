"""How large a job can one master keep? Real streams by the thousand, plans, heartbeats, and workers that die.

    python -m benchmarks.master [--workers 1000] [--seconds 20] [--churn_seconds 60] [--json FILE]

The master is the real one in a process of its own; only what starts workers is played. The workers are real
streams, each over a TLS connection of its own, with the shipped machine of a worker's attendance behind it,
but without model and ring; they share one process (`benchmarks/crowd.py`). So what is left out is what a ring
costs: see `benchmarks.worlds`.

- published: from the master's decision to the last worker that has the plan.
- settled: from there until the master has heard of everybody that it joined, and answers a question.
- steady: the master's share of one core while all send heartbeats and the status is asked for each second.
- churn: the same while 10 % of the workers are killed and replaced per minute, one after the other.

The workers' process takes its part of the machine, so all of it is slower here than with workers elsewhere.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import frame
from benchmarks.crowd import Crowd
from benchmarks.frame import BenchmarkFailed, Figure, Report, said
from edl_allreduce import clock
from edl_allreduce.core import protocol
from edl_allreduce.core.deadlines import Deadlines
from edl_allreduce.core.status import JobStatus
from edl_allreduce.rpc.client import command

CHURN = 0.1
"""Of the workers, per minute."""
LONGEST = 300.0
"""Seconds for which a plan may be on its way before the benchmark gives up."""
WANTED_SECONDS = 1.0
WANTED_CORES = 1.0


@dataclass
class Found:
    """What was measured with one number of workers."""

    workers: int
    connected: float = 0.0
    """Seconds from the master's wish for workers until all had the first plan."""
    published: float = 0.0
    settled: float = 0.0
    steady: float = 0.0
    """The master's share of a core."""
    status: list[float] = field(default_factory=list)
    memory: float = 0.0
    """Bytes of the master for each worker."""
    churned: float = 0.0
    """The master's share of a core while workers die."""
    plans: list[float] = field(default_factory=list)
    """Seconds until each plan was published to all, while workers died."""
    killed: int = 0
    evicted: int = 0
    """Workers that the master gave up although they lived."""
    broken: int = 0
    """Connections that ended although nobody was killed."""


def main(argv: list[str] | None = None) -> int:
    return frame.run(measure, flags, argv)


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", default="1000", help="how many, also several: 1000,5000")
    parser.add_argument("--seconds", type=float, default=20.0, help="of heartbeats without deaths")
    parser.add_argument("--churn_seconds", type=float, default=60.0)
    parser.add_argument("--failure_detection_seconds", type=float, default=10.0)


def measure(settings: argparse.Namespace, directory: Path) -> Report:
    sizes = [int(size) for size in settings.workers.split(",")]
    columns = ("", *(f"{size:,} workers" for size in sizes))
    report = Report("master", "one master, real streams from one machine", columns)
    found = []
    for size in sizes:
        with said(f"{size} workers"):
            found.append(asyncio.run(_measure(size, settings)))
    rows: dict[str, list[str]] = {}
    for one in found:
        for title, unit, form, values in (
            ("until all are connected", "s", "{:.1f}", [one.connected]),
            ("plan published to all", "s", "{:.2f}", [one.published]),
            ("settled after it", "s", "{:.2f}", [one.settled]),
            ("master, heartbeats", "cores", "{:.2f}", [one.steady]),
            ("status, answered in", "s", "{:.3f}", one.status),
            ("memory per worker", "KiB", "{:.0f}", [one.memory / 1024]),
            ("master, 10 % churn per minute", "cores", "{:.2f}", [one.churned]),
            ("plan published to all, churn", "s", "{:.2f}", one.plans),
        ):
            figure = report.keep(f"{title}, {one.workers} workers", Figure.of(values))
            rows.setdefault(f"{title}, {unit}", []).append(figure.text(form))
        rows.setdefault("killed", []).append(str(one.killed))
        rows.setdefault("given up although they lived", []).append(str(one.evicted))
        rows.setdefault("connections broken by themselves", []).append(str(one.broken))
    report.rows = [(title, *cells) for title, cells in rows.items()]
    first = found[0]
    report.verdict = (
        f"{first.workers:,} workers: published in {first.published:.2f} s, {first.steady:.2f} cores with "
        f"heartbeats, {first.memory / 1024:.0f} KiB per worker; wanted ≤ {WANTED_SECONDS:.0f} s and "
        f"≤ {WANTED_CORES:.0f} core"
    )
    return report


async def _measure(size: int, settings: argparse.Namespace) -> Found:
    found = Found(size)
    async with _master(size, settings.failure_detection_seconds) as master:
        before = master.memory()
        began = clock.now()
        generation = await master.everybody_has_it(size)
        found.connected = clock.now() - began
        found.published = master.published(generation)
        await master.settled()
        found.settled = clock.now() - master.crowd.last_received[generation]
        async with master.asked() as answers:
            found.steady = await master.cores(settings.seconds)
            found.status = answers
        found.memory = (master.memory() - before) / size
        known = set(master.planned)
        async with master.asked(), _churn(master, size) as killed:
            found.churned = await master.cores(settings.churn_seconds)
        if settings.churn_seconds:
            await master.everybody_has_it(size)
        found.killed = len(killed)
        whole = [g for g in set(master.planned) - known if master.whole(g)]
        found.plans = [master.published(generation) for generation in sorted(whole)]
        found.evicted = master.crowd.evicted
        found.broken = master.crowd.broken
    return found


@asynccontextmanager
async def _churn(master: Master, size: int) -> AsyncIterator[list[int]]:
    """Workers die one after the other, the oldest first, and the cluster tells of each."""
    killed: list[int] = []

    async def kill() -> None:
        while True:
            await asyncio.sleep(60 / (CHURN * size))
            killed.append(min(master.crowd.workers))
            await master.kill(killed[-1])

    task = asyncio.create_task(kill())
    try:
        yield killed
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


# ------------------------------------------------------------------------------------------------ the master


@asynccontextmanager
async def _master(size: int, detection: float) -> AsyncIterator[Master]:
    token = secrets.token_hex(16)
    words = [f"--workers={size}", f"--token={token}", f"--failure_detection_seconds={detection}"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.programs.master", *words), stdin=PIPE, stdout=PIPE, limit=2**24
    )
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        raise BenchmarkFailed("the master did not start")
    master = Master(process, f"127.0.0.1:{json.loads(line)['port']}", token, Deadlines(detection))
    helpers = [asyncio.create_task(master.listen()), asyncio.create_task(master.crowd.beat())]
    try:
        yield master
    finally:
        for helper in helpers:
            helper.cancel()
        process.kill()
        await process.wait()
        await master.crowd.close()


class Master:
    """The master's process, and the workers that it wanted."""

    def __init__(self, process: Process, address: str, token: str, deadlines: Deadlines) -> None:
        self._process = process
        self._address = address
        self._token = token
        self.crowd = Crowd(address, token, deadlines)
        self.planned: dict[int, tuple[float, int]] = {}
        """By generation: when it was decided, and of how many."""

    async def listen(self) -> None:
        """Do what it wants done."""
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            match json.loads(line):
                case {"launch": worker_id}:
                    self.crowd.launch(worker_id)
                case {"kill": worker_id}:
                    await self.kill(worker_id)
                case {"planned": generation, "at": at, "size": size}:
                    self.planned[generation] = (at, size)
                    self.crowd.changed.set()

    async def kill(self, worker_id: int) -> None:
        await self.crowd.kill(worker_id)
        assert self._process.stdin is not None
        self._process.stdin.write(f"{worker_id}\n".encode())

    # ---------------------------------------------------------------------------------------------- plans

    def whole(self, generation: int) -> bool:
        """Whether all members got its plan; one that was overtaken by the next may be thrown away."""
        return self.crowd.received.get(generation, 0) >= self.planned[generation][1]

    def published(self, generation: int) -> float:
        return self.crowd.last_received[generation] - self.planned[generation][0]

    async def everybody_has_it(self, size: int) -> int:
        """Wait until the newest plan seats so many and all of them got it; its generation."""
        deadline = clock.now() + LONGEST
        while clock.now() < deadline:
            newest = max(self.planned, default=0)
            if newest and self.planned[newest][1] == size and self.whole(newest):
                return newest
            self.crowd.changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.crowd.changed.wait(), 1.0)
        shown = {g: (s, self.crowd.received.get(g, 0)) for g, (_, s) in sorted(self.planned.items())[-5:]}
        raise BenchmarkFailed(
            f"no plan of {size} workers reached all of them within {LONGEST:.0f} s; "
            f"{len(self.crowd.workers)} workers run; the last plans (generation: size, received): {shown}"
        )

    async def settled(self) -> None:
        """Until the master has heard everything that the workers said, and nothing is missing."""
        while True:
            status = await self.ask()
            if status.phase == "Training" and not status.waiting_for:
                return
            await asyncio.sleep(0.05)

    # --------------------------------------------------------------------------------------------- looking

    async def ask(self) -> JobStatus:
        ask: Any = protocol.Ask()
        return await asyncio.to_thread(command, self._address, self._token, ask, LONGEST)

    @asynccontextmanager
    async def asked(self) -> AsyncIterator[list[float]]:
        """Somebody asks for the status every second; how long the answers took."""
        answers: list[float] = []

        async def look() -> None:
            while True:
                began = clock.now()
                await self.ask()
                answers.append(clock.now() - began)
                await asyncio.sleep(1.0)

        task = asyncio.create_task(look())
        try:
            yield answers
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def cores(self, seconds: float) -> float:
        """Its share of a core for so long."""
        if not seconds:
            return 0.0
        began, before = clock.now(), self._processor()
        await asyncio.sleep(seconds)
        return (self._processor() - before) / (clock.now() - began)

    def _processor(self) -> float:
        fields = self._of("stat").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> int:
        """Bytes that it holds."""
        line = next(line for line in self._of("status").splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) * 1024

    def _of(self, name: str) -> str:
        return Path(f"/proc/{self._process.pid}/{name}").read_text()


if __name__ == "__main__":
    raise SystemExit(main())
