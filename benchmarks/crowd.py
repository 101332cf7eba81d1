"""Workers by the thousand in one process: real streams and the shipped machine of a worker's attendance, but
no model, no ring and no threads. Each has a connection of its own, as processes on many machines would."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from functools import lru_cache
from typing import Any

import grpc
import grpc.aio

from edl_allreduce import clock
from edl_allreduce.core import protocol
from edl_allreduce.core.attendance import events, machine, queries
from edl_allreduce.core.attendance.state import FINAL, RING, Stage, State
from edl_allreduce.core.deadlines import Deadlines
from edl_allreduce.core.health import Activity
from edl_allreduce.core.protocol import Seat
from edl_allreduce.rpc import codec
from edl_allreduce.rpc.identity import TLS_NAME, tls_of
from edl_allreduce.rpc.server import CHANNEL_OPTIONS, SERVICE

STEPS_PER_SECOND = 10
OWN_CONNECTION = ("grpc.use_local_subchannel_pool", 1)
"""Otherwise all channels of a process to one address share a connection."""
READY = protocol.Ready(0, False, "data", 10**9, 64, model={"model": "the same"})

decoded: Callable[[bytes], protocol.FromMaster] = lru_cache(maxsize=8)(codec.decode_from_master)
"""Each worker of a real job decodes its own copy on its own machine."""


class Crowd:
    """All workers, and what they heard."""

    def __init__(self, address: str, token: str, deadlines: Deadlines) -> None:
        self.address = address
        self.metadata = (("authorization", f"Bearer {token}"),)
        self.credentials = grpc.ssl_channel_credentials(tls_of(token).certificate.encode())
        self.deadlines = deadlines
        self.workers: dict[int, Worker] = {}
        self.received: dict[int, int] = {}
        """By generation: how many got its plan."""
        self.last_received: dict[int, float] = {}
        self.joined: dict[int, int] = {}
        self.began = clock.now()
        self.evicted = 0
        self.broken = 0
        """Connections that ended although nobody was killed."""
        self.changed = asyncio.Event()
        self.doors = asyncio.Semaphore(AT_ONCE)

    def launch(self, worker_id: int) -> None:
        worker = self.workers[worker_id] = Worker(self, worker_id)
        worker.task = asyncio.create_task(worker.run())

    async def kill(self, worker_id: int) -> None:
        """As the kernel closes the connection of a process that is killed."""
        worker = self.workers.pop(worker_id, None)
        if worker is not None:
            worker.task.cancel()
            await asyncio.gather(worker.task, return_exceptions=True)

    async def beat(self) -> None:
        """Heartbeats of all, spread over time as those of processes are that began at different times."""
        turn = 0
        while True:
            for number, worker in list(self.workers.items()):
                if number % BEATS == turn % BEATS:
                    worker.beat()
            turn += 1
            await asyncio.sleep(self.deadlines.heartbeat / BEATS)

    def got(self, generation: int, now: float) -> None:
        self.received[generation] = self.received.get(generation, 0) + 1
        self.last_received[generation] = now
        self.changed.set()

    def step(self) -> int:
        return int((clock.now() - self.began) * STEPS_PER_SECOND)

    async def close(self) -> None:
        for worker_id in list(self.workers):
            await self.kill(worker_id)


AT_ONCE = 50
"""Workers that connect at the same moment: both ends of all handshakes share this machine."""
BEATS = 40
"""Turns in which the workers send one heartbeat each."""


class Worker:
    """One worker without a model. It goes to each ring at once: nobody waits for anybody."""

    task: asyncio.Task[None]

    def __init__(self, crowd: Crowd, worker_id: int) -> None:
        self._crowd = crowd
        seat = Seat(uuid.uuid4().hex, worker_id, "127.0.0.1")
        self._state = State(seat, crowd.deadlines)
        self._outbox: asyncio.Queue[protocol.FromWorker] = asyncio.Queue()
        self._began = clock.now()
        self._inside = True

    async def run(self) -> None:
        """Until it is told to go; a connection that breaks is opened again."""
        self._happened(events.Begun())
        while not isinstance(self._state.last, FINAL):
            await self._crowd.doors.acquire()
            try:
                await self._attend()
            except grpc.aio.AioRpcError:
                self._crowd.broken += 1
            finally:
                self._welcomed()
            self._happened(events.Closed(self._state.link, clean=False))
            await asyncio.sleep(machine.RETRY_SECONDS)
            self._happened(events.Tick())

    def _welcomed(self) -> None:
        """The next one may come."""
        if not self._inside:
            self._inside = True
            self._crowd.doors.release()

    async def _attend(self) -> None:
        crowd = self._crowd
        self._inside = False
        options = [*CHANNEL_OPTIONS, OWN_CONNECTION, ("grpc.ssl_target_name_override", TLS_NAME)]
        async with grpc.aio.secure_channel(crowd.address, crowd.credentials, options=options) as channel:
            attend = channel.stream_stream(f"/{SERVICE}/Attend", codec.encode, None)
            call = attend(self._said(), metadata=crowd.metadata, wait_for_ready=True)
            async for answer in call:
                now = clock.now()
                message = decoded(answer)
                if isinstance(message, protocol.NewPlan):
                    crowd.got(message.plan.generation, now)
                self._happened(events.Heard(message))
                if isinstance(message, protocol.Welcome):
                    self._welcomed()
                    if self._state.stage is Stage.PREPARING:
                        self._happened(events.IsReady(READY))
                self._go_on()
                if isinstance(self._state.last, FINAL):
                    crowd.evicted += isinstance(self._state.last, protocol.Evicted)
                    return

    def beat(self) -> None:
        state = self._state
        if not state.linked:
            return
        now = clock.now()
        generation = state.plan.generation if state.plan is not None else 0
        step = self._crowd.step()
        ledger = {"startup": 1.0, "step": 0.9 * (now - self._began), "input": 0.1 * (now - self._began)}
        pulse = protocol.Pulse(
            Activity.COMPUTING if generation else Activity.IDLE,
            generation,
            step,
            64 * step,
            0.5,
            1 / STEPS_PER_SECOND,
            0,
            ledger,
            0.5 / STEPS_PER_SECOND,
            0.5 / STEPS_PER_SECOND,
        )
        self._outbox.put_nowait(pulse)

    async def _said(self) -> AsyncIterator[protocol.FromWorker]:
        for message in queries.introduction(self._state, 0):
            yield message
        while True:
            yield await self._outbox.get()

    def _happened(self, event: events.Event) -> None:
        self._state, instructions = machine.handle(self._state, event, clock.now())
        for instruction in instructions:
            match instruction:
                case events.Send(message):
                    self._outbox.put_nowait(message)
                case events.Prepare(plan):
                    self._happened(events.Prepared(plan.generation))
                case events.Anomaly(text):
                    raise AssertionError(text)

    def _go_on(self) -> None:
        """As the training thread does between two rings."""
        state, crowd = self._state, self._crowd
        generation = state.plan.generation if state.plan is not None else 0
        order: Any = queries.pending(state, generation, clock.now())
        if isinstance(order, protocol.NewPlan):
            step = crowd.step()
            if state.stage in RING:
                broken = "its ring broke" if order.abort else ""
                self._happened(events.HasLeft(step, broken))
            self._happened(events.Entering(order.plan))
            self._happened(events.HasJoined(order.plan.generation, step, 64 * step))
            crowd.joined[order.plan.generation] = crowd.joined.get(order.plan.generation, 0) + 1
            pause = protocol.Reformed(order.plan.generation, order.plan.size, 0.01, 0.01, 0.01, 0.0, 0.02)
            self._happened(events.Said(pause))
