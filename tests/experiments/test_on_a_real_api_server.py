"""Both live experiments in small: real API server, scheduler and controller; masters of the shipped code."""

from __future__ import annotations

import asyncio
import csv
from collections.abc import Callable

import pytest

from experiments import live
from experiments.collector import COLUMNS
from experiments.lab import NAMESPACE, Nodes, Shape, furnish, training_job
from experiments.nginx import CaseTwo
from experiments.players import Play
from tests.trainingjob.conftest import remove

pytestmark = [pytest.mark.controlplane, pytest.mark.soak, pytest.mark.timeout(300)]

NODES = (Nodes(2, 18),)
"""Room for six workers of five CPUs, wherever the masters are."""
FAST = Play(master_start=0.1, start_up=0.2)


class Small(CaseTwo):
    """One job has all of it; another comes, then a service; then the service goes."""

    def __init__(self) -> None:
        super().__init__(Shape(1, 6), jobs=2, pace=1.0, scale=0.0)
        self.sizes: list[tuple[int, ...]] = []

    async def play(self) -> None:
        await self._comes(0)
        await self._until(lambda: self._sizes() == (6, 0), "it has all of the cluster")
        await self._comes(1)
        await self._until(lambda: self._sizes()[1] >= 2 and sum(self._sizes()) == 6, "they share")
        await self._has(3)
        await self._until(lambda: min(self._sizes()) >= 1 and sum(self._sizes()) < 6, "they made room")
        await self._has(0)
        await self._until(lambda: sum(self._sizes()) == 6, "they have it again")

    async def _comes(self, number: int) -> None:
        name = self.names[number]
        await self.stage.submit(name, training_job(name, self._shape))

    async def _has(self, pods: int) -> None:
        """The service grows or shrinks, and has what it wants."""
        await self._step(pods, 0.2)
        await self._until(lambda: self.stage.service() == pods, f"the service has {pods} pods")

    def _sizes(self) -> tuple[int, ...]:
        return tuple(self.stage.running(name) for name in self.names)

    async def _until(self, so: Callable[[], bool], what: str) -> None:
        for _ in range(900):
            if so():
                self.sizes.append(self._sizes())
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"not so: {what}; sizes {self._sizes()}, service {self.stage.service()}")


def test_jobs_share_a_cluster_with_each_other_and_with_a_service(controlplane, tmp_path):
    script = Small()
    try:
        furnish(controlplane, NODES)
        figures = live.perform(controlplane, NODES, "nginx", live.OURS, script, tmp_path, FAST)
    finally:
        remove(controlplane)
        controlplane.delete_namespace(NAMESPACE)
    assert script.sizes[0] == (6, 0) and sum(script.sizes[-1]) == 6
    assert min(map(sum, script.sizes)) < 6, "the service had room"
    assert figures["slowest"] is not None or figures["slowest_within"] == 0.2, "a step is waited for 0.2 s"
    with (tmp_path / "nginx-ours.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert all(float(row["cpu %"]) <= 100 for row in rows)
    reforms = [master.ring.reforms for master in script.stage.masters.values()]
    assert len(reforms) == 2 and min(reforms) >= 1 and sum(reforms) >= 3, (
        "rings were made anew, in one process"
    )
