"""A job asks for a hundred workers where there is room for ninety-nine: it does not wait for the last one.

Pods are real objects on hollow nodes; for each running pod a coroutine speaks the worker's protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from edl_allreduce.core import protocol
from edl_allreduce.core.deadlines import Deadlines
from edl_allreduce.core.job.lifecycle import Phase
from edl_allreduce.core.job.state import JobOptions
from edl_allreduce.core.protocol import Seat
from edl_allreduce.master.shell import JobShell
from tests.kubernetes.conftest import cluster_for, owner_of, spec_for, until

pytestmark = pytest.mark.controlplane

WANTED = 100


async def worker(job: JobShell, worker_id: int) -> None:
    """From hello to release, as a worker that is quick at everything."""
    said: asyncio.Queue[protocol.FromWorker | None] = asyncio.Queue()
    seat = Seat(f"uid-{worker_id}", worker_id, "10.0.0.1")
    said.put_nowait(protocol.Hello(seat, version="test"))
    said.put_nowait(protocol.Ready(0, False, "data", 1000, 100))

    async def requests() -> AsyncIterator[protocol.FromWorker]:
        while (message := await said.get()) is not None:
            yield message

    async for order in job.attend(requests(), "test"):
        match order:
            case protocol.NewPlan(plan) if plan.rank_of(seat.uid) is not None:
                said.put_nowait(protocol.Entered(plan.generation))
                said.put_nowait(protocol.Joined(plan.generation, 0, 0))
            case protocol.Release() | protocol.Evicted():
                said.put_nowait(None)


def test_ninety_nine_train_and_the_hundredth_joins_when_there_is_room(controlplane, namespace, connect):
    controlplane.add_hollow_nodes(11, cpu=9)
    api = connect(controlplane.kubeconfig)
    spec = spec_for(namespace, f"--num_workers={WANTED}")
    cluster, _ = cluster_for(api, spec, owner_of(controlplane, namespace))
    options = JobOptions("job", WANTED, 1, 2.0, Deadlines(120), 3)

    async def scenario() -> None:
        await cluster.start()
        job = JobShell(options, cluster)
        running = asyncio.create_task(job.run())
        workers: dict[str, asyncio.Task[None]] = {}

        async def play() -> None:
            while True:
                for pod in await asyncio.to_thread(controlplane.pods, namespace):
                    name = pod["metadata"]["name"]
                    if pod["status"].get("phase") == "Running" and name not in workers:
                        number = int(name.rpartition("-")[2])
                        workers[name] = asyncio.create_task(worker(job, number))
                await asyncio.sleep(0.5)

        players = asyncio.create_task(play())

        def ring() -> int:
            return sum(w.rank >= 0 for w in job.status().workers)

        await until(lambda: ring() == WANTED - 1, "ninety-nine train", 120)
        assert job.status().phase == Phase.TRAINING.value
        waiting = [w for w in job.status().workers if w.standing == "starting"]
        assert len(waiting) == 1
        assert "Insufficient cpu" in waiting[0].activity
        assert any("Insufficient cpu" in event.text for event in job.status().events), "people are told"
        await asyncio.to_thread(controlplane.add_hollow_nodes, 1, prefix="more", cpu=9)
        await until(lambda: ring() == WANTED, "the hundredth joins", 120)
        players.cancel()
        job.kill_all()
        await running

    asyncio.run(scenario())
