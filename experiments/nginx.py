"""Six jobs beside a service that grows and shrinks, on 133 nodes (PaddlePaddle EDL's case 2).

nginx has 400 pods of 3 CPUs, then 300, 200, 100, 200, 300 and 400 again. The jobs ask for 2 to 60 workers of
5 CPUs; rigid ones for 15, as published. All of it is in real time; with --pace=0.5 the waits between two
steps are half as long, and nothing else is faster.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping

from edl_allreduce.cli import figure
from edl_allreduce.cluster.kubernetes.names import Object
from experiments import live
from experiments.collector import between, load
from experiments.lab import NAMESPACE, PUBLISHED, Nodes, Shape, deployment, training_job
from experiments.live import Figures, Script

JOBS, EVERY, FIRST = 6, 5.0, 60.0
STEPS = ((300, 90.0), (200, 90.0), (100, 90.0), (200, 90.0), (300, 90.0), (400, 120.0))
"""Pods of nginx, and for how many seconds."""
PODS = 400
END, OFF_PEAK = 550.0, (300.0, 370.0)
"""Of the published run: to where the mean is taken, and when nginx had 100 pods."""
ELASTIC, RIGID = Shape(2, 60), Shape(15, 15)
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
LOOK = 0.1
ROWS = {
    "mean_load": ("mean utilisation", "%", "83.4", "61.9", "≥ 90"),
    "off_peak": ("utilisation when nginx has 100 pods", "%", "79.4", "44.9", "≥ 90"),
    "slowest": ("nginx at its wanted size, the slowest step", "s", "not within 120", "≤ 30", "≤ 5"),
    "slowest_up": ("… of those by which it grows", "s", "", "", ""),
    "settled": ("utilisation from 120 s on", "%", "", "", ""),
}
"""By figure: its name, unit, published with and without elasticity, and what is to be reached."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    live.add_flags(parser)
    parser.add_argument("--scale", type=float, default=1.0, help="so many times the published pods of nginx")
    parser.add_argument("--jobs", type=int, default=JOBS, help="default: 6")


def run(flags: argparse.Namespace) -> None:
    def script(policy: str, nodes: tuple[Nodes, ...]) -> CaseTwo:
        return CaseTwo(RIGID if policy == live.RIGID else ELASTIC, flags.jobs, flags.pace, flags.scale)

    live.run("nginx", script, flags, nodes=PUBLISHED)
    live.conclude("nginx", flags, ROWS, panels)


class CaseTwo(Script):
    """What happens, and the figures that come of it."""

    def __init__(self, shape: Shape, jobs: int, pace: float, scale: float) -> None:
        self.names = [f"job-{number}" for number in range(jobs)]
        self._shape, self.pace, self._scale = shape, pace, scale
        self.pods = round(PODS * scale)
        self.took: list[tuple[int, float]] = []
        """Each step of nginx: how many it had to become, and the seconds that it took."""

    def wanted(self) -> int:
        return self.pods

    async def prepare(self) -> None:
        """Before the collector starts, as published."""
        await self._call(self.api.create, DEPLOYMENTS, deployment("nginx", self.pods, 3, 3))
        while self.stage.service() != self.pods:
            await asyncio.sleep(LOOK)

    async def play(self) -> None:
        for name in self.names:
            await self.stage.submit(name, training_job(name, self._shape))
            await asyncio.sleep(EVERY * self.pace)
        await asyncio.sleep(FIRST * self.pace)
        for pods, seconds in STEPS:
            await self._step(round(pods * self._scale), seconds * self.pace)

    async def _step(self, pods: int, seconds: float) -> None:
        began = self.collector.now
        self.pods = pods
        change: Object = {"spec": {"replicas": pods}}
        await self._call(self.api.patch, f"{DEPLOYMENTS}/nginx", change)
        reached: float | None = None
        while (passed := self.collector.now - began) < seconds:
            if reached is None and self.stage.service() == pods:
                reached = passed
            await asyncio.sleep(LOOK)
        self.took.append((pods, seconds if reached is None else reached))

    def figures(self) -> Figures:
        samples, pace = self.collector.samples, self.pace
        before, found = round(PODS * self._scale), {}
        for number, (pods, seconds) in enumerate(self.took):
            found[f"step_{number}_from_{before}_to_{pods}"] = seconds
            before = pods
        up = [s for name, s in found.items() if int(name.split("_")[-1]) > int(name.split("_")[-3])]
        return {
            "mean_load": 100 * load(between(samples, 0, END * pace)),
            "off_peak": 100 * load(between(samples, OFF_PEAK[0] * pace, OFF_PEAK[1] * pace)),
            "settled": 100 * load(between(samples, 120 * pace, float("inf"))),
            "slowest": max(found.values()),
            "slowest_up": max(up),
            **found,
        }


def panels(runs: Mapping[str, live.Rows]) -> list[figure.Panel]:
    return [
        live.panel("pods of nginx", runs, "nginx pods"),
        live.panel("utilisation, % of the CPUs", runs, "cpu %"),
        live.panel("workers that run", runs, "running trainers"),
        live.spread("workers of the richest and of the poorest job", runs),
    ]
