"""Six jobs beside a service that grows and shrinks, on 133 nodes (PaddlePaddle EDL's case 2).

nginx has 400 pods of 3 CPUs, then 300, 200, 100, 200, 300 and 400 again. The jobs ask for 2 to 60 workers of
5 CPUs; rigid ones for 15, as published. All of it is in real time; with --pace=0.5 the waits between two
steps are half as long, and nothing else is faster.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence

from edl_allreduce.cli import figure
from edl_allreduce.cluster.kubernetes.names import Object
from experiments import live
from experiments.collector import between, load
from experiments.lab import NAMESPACE, Shape, deployment, training_job
from experiments.live import Figures, Script
from experiments.model import Model

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
    def script(policy: str) -> CaseTwo:
        return CaseTwo(RIGID if policy == live.RIGID else ELASTIC, flags.jobs, flags.pace, flags.scale)

    live.run("nginx", script, flags, ROWS, panels)


class CaseTwo(Script):
    """What happens, and the figures that come of it."""

    def __init__(self, shape: Shape, jobs: int, pace: float, scale: float) -> None:
        self.names = [f"job-{number}" for number in range(jobs)]
        self._shape, self.pace, self._scale = shape, pace, scale
        self.pods = round(PODS * scale)
        self.took: list[tuple[int, float | None, float]] = []
        """Each step of nginx: how many it had to become, the seconds that it took, and how many it had."""

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
        self.took.append((pods, reached, seconds))

    def rehearse(self, model: Model) -> None:
        model.scale_service(self.pods)
        while model.service() != self.pods:
            model.second(self.names)
        model.begin()
        for name in self.names:
            model.submit(name, self._shape)
            self._pass(model, EVERY)
        self._pass(model, FIRST)
        for pods, seconds in STEPS:
            self.pods, began, reached = round(pods * self._scale), model.now, None
            model.scale_service(self.pods)
            for _ in range(round(seconds * self.pace)):
                model.second(self.names)
                if reached is None and model.service() == self.pods:
                    reached = model.now - began
            self.took.append((self.pods, reached, seconds * self.pace))

    def figures(self) -> Figures:
        samples, pace = self.looked.samples, self.pace
        sizes = [round(PODS * self._scale), *(pods for pods, _, _ in self.took)]
        steps: Figures = {}
        for number, (pods, reached, seconds) in enumerate(self.took):
            steps |= _slowest(f"step_{number}_from_{sizes[number]}_to_{pods}", [(reached, seconds)])
        took = [(reached, seconds) for _, reached, seconds in self.took]
        up = [one for one, was, pods in zip(took, sizes, sizes[1:], strict=False) if pods > was]
        return {
            "mean_load": 100 * load(between(samples, 0, END * pace)),
            "off_peak": 100 * load(between(samples, OFF_PEAK[0] * pace, OFF_PEAK[1] * pace)),
            "settled": 100 * load(between(samples, 120 * pace, float("inf"))),
            **_slowest("slowest", took),
            **_slowest("slowest_up", up),
            **steps,
        }


def _slowest(name: str, steps: Sequence[tuple[float | None, float]]) -> Figures:
    """Of steps with the seconds that they took and had; one that never got there is slower than any other."""
    missed = [had for took, had in steps if took is None]
    if missed:
        return {name: None, f"{name}{live.WITHIN}": max(missed)}
    return {name: max(took for took, _ in steps if took is not None)}


def panels(runs: Mapping[str, live.Rows]) -> list[figure.Panel]:
    return [
        live.panel("pods of nginx", runs, "nginx pods"),
        live.panel("utilisation, % of the CPUs", runs, "cpu %"),
        live.panel("workers that run", runs, "running trainers"),
        live.spread("workers of the richest and of the poorest job", runs),
    ]
