"""How long a re-form takes in worlds of 2, 4, 8 and 16 ranks, over stock Horovod and its rendezvous server.

    python -m benchmarks.worlds [--sizes 2,4,8,16] [--rounds 5] [--json FILE]

No model. All ranks leave their ring, enter the next one of the same members and exchange one number; the time
from the order to the last rank's answer counts. Ours goes the way of a real job: plans and keys over the
master's authenticated streams, each worker with a store on its own loopback. The peer gets its orders through
pipes, which is quicker, and meets at Horovod's own HTTP server as horovodrun starts it. It is frozen while
ours takes its turn.

All ranks share this machine, so most of a large world's time is many processes on few cores.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import signal
import sys
import threading
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Protocol, TypeVar

from benchmarks import frame
from benchmarks.contestants import peer_environment, peers_run_on
from benchmarks.frame import BenchmarkFailed, Figure, Report, said
from edl_allreduce import clock
from edl_allreduce.core import protocol
from edl_allreduce.core.parts import Parts
from edl_allreduce.core.protocol import Plan, Seat
from edl_allreduce.core.status import JobStatus
from edl_allreduce.errors import UsageError
from edl_allreduce.rpc.server import MasterServer

T = TypeVar("T")
Times = dict[int, list[float]]
REACHED = "reached the new ring"
BEGIN_SECONDS = 600.0
STALL_SECONDS = 180.0
LONG_SECONDS = 10.0
"""What takes longer is measured once."""


class World(Protocol):
    """Processes that can be told to form a ring."""

    async def begin(self, ranks: int) -> None: ...

    async def reform(self, size: int) -> float: ...

    async def end(self) -> None: ...


def main(argv: list[str] | None = None) -> int:
    return frame.run(measure, flags, argv)


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", default="2,4,8,16")
    parser.add_argument("--rounds", type=int, default=5)


def measure(settings: argparse.Namespace, directory: Path) -> Report:
    sizes = sorted(int(size) for size in settings.sizes.split(","))
    ours, theirs = asyncio.run(_measure(sizes, settings.rounds, directory))
    report = Report(
        "worlds",
        "re-form without a model, ms",
        ("ranks", "ours", "stock Horovod", "ours / stock"),
        notes=[peers_run_on()],
    )
    for size in sizes:
        mine = report.keep(f"{size} ranks, ours", Figure.of(ours[size]))
        peers = report.keep(f"{size} ranks, stock", Figure.of(theirs[size]))
        ratio = f"{mine.median / peers.median:.3f}" if peers.values else frame.NOTHING
        report.rows.append(
            (
                str(size),
                mine.text("{:.0f}", 1000),
                peers.text("{:.0f}", 1000) if peers.values else "stalled",
                ratio,
            )
        )
    middle = 8 if 8 in sizes else sizes[-1]
    mine, peers = Figure.of(ours[middle]), Figure.of(theirs[middle])
    growth = " → ".join(f"{Figure.of(ours[size]).median / size * 1000:.1f}" for size in sizes)
    report.verdict = (
        f"ours / stock at {middle} ranks = {mine.median:.3f} s / {peers.median:.3f} s = "
        f"{mine.median / peers.median:.3f}; wanted ≤ 0.2 s at 8; ms per rank {growth}, wanted not to grow"
    )
    return report


async def _measure(sizes: list[int], rounds: int, directory: Path) -> tuple[Times, Times]:
    ours, theirs = OurWorld(directory), StockWorld(directory)
    times: tuple[dict[int, list[float]], dict[int, list[float]]] = (
        {s: [] for s in sizes},
        {s: [] for s in sizes},
    )
    try:
        with said(f"{2 * sizes[-1]} processes start"):
            await asyncio.gather(ours.begin(sizes[-1]), theirs.begin(sizes[-1]))
        for size in sizes:  # worlds only grow: who left stays out of the way
            with said(f"{size} ranks"):
                await _turns(size, rounds, [(ours, times[0][size]), (theirs, times[1][size])])
    finally:
        await ours.end()
        await theirs.end()
    return times


async def _turns(size: int, rounds: int, sides: list[tuple[World, list[float]]]) -> None:
    """One time each in turn; a quick first one only brings the world up to this size."""
    for round_ in range(rounds + 1):
        for world, times in sides:
            if times and times[-1] > LONG_SECONDS:
                continue
            seconds = await world.reform(size)
            if round_ or seconds > LONG_SECONDS:  # so long that the bringing up does not show
                times.append(seconds)


class _Processes:
    """Rank processes with a log each."""

    def __init__(self, directory: Path, program: str, environment: dict[str, str]) -> None:
        self._directory = directory
        self._program = program
        self._environment = environment
        self.all: list[Process] = []

    async def start(self, *words: str, pipes: bool) -> Process:
        log = self._directory / f"{self._program}-{len(self.all)}.log"
        with log.open("wb") as out:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", f"benchmarks.programs.{self._program}", *words,
                stdin=PIPE if pipes else DEVNULL, stdout=PIPE if pipes else out, stderr=out,
                env=self._environment,
            )  # fmt: skip
        self.all.append(process)
        return process

    async def within(self, what: Awaitable[T], seconds: float, did: str) -> T:
        """Wait, but not for ever."""
        try:
            return await asyncio.wait_for(what, seconds)
        except TimeoutError:
            text = f"{self._program}: not all ranks {did} within {seconds:.0f} s\n{self.story()}"
            raise BenchmarkFailed(text) from None

    def story(self) -> str:
        logs = sorted(self._directory.glob(f"{self._program}-*.log"))
        return "\n".join(text for log in logs if (text := log.read_text(errors="replace")[-500:]))

    async def end(self) -> None:
        for process in self.all:
            if process.returncode is None:
                process.kill()
        await asyncio.gather(*(process.wait() for process in self.all))


class OurWorld:
    """A master's server that only plans and passes keys on, and workers without a model."""

    def __init__(self, directory: Path) -> None:
        self._token = secrets.token_hex(16)
        self._server = MasterServer(self._token, self._attend, self._answer)
        self._outboxes: dict[str, asyncio.Queue[protocol.FromMaster]] = {}
        self._ready: asyncio.Queue[str] = asyncio.Queue()
        self._reached: asyncio.Queue[tuple[int, float]] = asyncio.Queue()
        self._plan = Plan(0, ())
        self._parts = Parts()
        self._processes = _Processes(directory, "our_rank", peer_environment(ours=True))

    async def begin(self, ranks: int) -> None:
        port = await self._server.start("127.0.0.1", 0)
        for number in range(ranks):
            words = (f"--master=127.0.0.1:{port}", f"--token={self._token}", f"--worker={number}")
            await self._processes.start(*words, pipes=False)
        for _ in range(ranks):
            await self._processes.within(self._ready.get(), BEGIN_SECONDS, "started")

    async def reform(self, size: int) -> float:
        members = tuple(Seat(f"rank-{number}", number, "127.0.0.1") for number in range(size))
        self._plan = Plan(self._plan.generation + 1, members)
        began = clock.now()
        for seat in members:
            self._outboxes[seat.uid].put_nowait(protocol.NewPlan(self._plan, True, "the benchmark says so"))
        latest = 0.0
        for _ in members:
            generation, now = await self._processes.within(
                self._reached.get(), STALL_SECONDS, "reached the new ring"
            )
            assert generation == self._plan.generation
            latest = max(latest, now)
        return latest - began

    async def end(self) -> None:
        await self._processes.end()
        await self._server.stop(None)  # type: ignore[arg-type]  # at once

    async def _attend(
        self, requests: AsyncIterator[protocol.FromWorker], address: str
    ) -> AsyncIterator[protocol.FromMaster]:
        hello = await anext(requests)
        assert isinstance(hello, protocol.Hello)
        outbox = self._outboxes[hello.seat.uid] = asyncio.Queue()
        reader = asyncio.create_task(self._read(hello.seat.uid, requests))
        try:
            while True:
                yield await outbox.get()
        finally:
            reader.cancel()

    async def _read(self, uid: str, requests: AsyncIterator[protocol.FromWorker]) -> None:
        async for message in requests:
            match message:
                case protocol.Ready():
                    self._ready.put_nowait(uid)
                case protocol.KvPart(generation, key, number, of, part):
                    whole = self._parts.add(generation, key, number, of, part)
                    for seat in self._plan.members if whole is not None else ():
                        self._outboxes[seat.uid].put_nowait(protocol.KvEntry(generation, key, whole))
                case protocol.Note(text=text):
                    generation, now = text.split()
                    self._reached.put_nowait((int(generation), float(now)))

    async def _answer(self, command: protocol.Command) -> JobStatus:
        raise UsageError("there is no job here")


class StockWorld:
    """Horovod's own rendezvous server, and ranks that meet there."""

    def __init__(self, directory: Path) -> None:
        from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

        # As RendezvousServer makes it, but not open to the network.
        self._server = RendezvousHTTPServer(("127.0.0.1", 0), RendezvousHandler, 0)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self._processes = _Processes(directory, "stock_rank", peer_environment())

    async def begin(self, ranks: int) -> None:
        for _ in range(ranks):
            await self._processes.start(str(self._server.server_address[1]), pipes=True)
        for process in self._processes.all:
            await self._line(process, BEGIN_SECONDS, "started")

    async def reform(self, size: int) -> float:
        from horovod.runner.common.util.hosts import HostInfo, get_host_assignments

        self._server.init(get_host_assignments([HostInfo("localhost", size)], size))
        members = self._processes.all[:size]
        for process in members:
            process.send_signal(signal.SIGCONT)
        began = clock.now()
        for rank, process in enumerate(members):
            assert process.stdin is not None
            process.stdin.write(f"{rank} {size}\n".encode())
        seconds = max([float(await self._line(p, STALL_SECONDS, REACHED)) for p in members]) - began
        for process in members:  # its idle ring has a thousand cycles a second and would slow down ours
            process.send_signal(signal.SIGSTOP)
        return seconds

    async def _line(self, process: Process, seconds: float, did: str) -> str:
        assert process.stdout is not None
        line = (await self._processes.within(process.stdout.readline(), seconds, did)).decode().strip()
        if not line:
            raise BenchmarkFailed(
                f"a rank of stock Horovod ended before all {did}\n{self._processes.story()}"
            )
        return line

    async def end(self) -> None:
        await self._processes.end()
        self._server.shutdown()
        self._server.server_close()


if __name__ == "__main__":
    raise SystemExit(main())
