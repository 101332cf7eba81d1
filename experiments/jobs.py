"""Twenty jobs come to a cluster of 133 nodes, one every ten seconds, and stay (PaddlePaddle EDL's case 1).

Each asks for 2 to 60 workers of 5 CPUs; rigid ones for 60. It ends 300 seconds after the last has come.
All of it is in real time; with --pace=0.5 the own waits of the experiment are half as long, nothing else is.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping

from edl_allreduce.cli import figure
from experiments import live
from experiments.collector import between, jain, load, workers_per_job
from experiments.lab import Shape, training_job
from experiments.live import Figures, Script
from experiments.model import Model

JOBS, EVERY, STAY = 20, 10.0, 300.0
STABLE = 300.0
"""From here on the published figures are taken, to the end."""
ELASTIC, RIGID = Shape(2, 60), Shape(60, 60)
ROWS = {
    "pending": ("mean pending", "s", "47", "309", "< 15"),
    "load": ("stable utilisation", "%", "86.3", "88.7", "≥ 92"),
    "jain": ("Jain's index of workers per job", "", "0.44", "0.30", "≥ 0.97"),
    "mean_load": ("mean utilisation of the whole run", "%", "76.3", "76.2", ""),
    "workers": ("workers that run, stable", "", "253", "347", ""),
    "waiting": ("jobs that wait, stable", "", "0.9", "14", ""),
}
"""By figure: its name, unit, published with and without elasticity, and what is to be reached."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    live.add_flags(parser)
    parser.add_argument("--jobs", type=int, default=JOBS, help="default: 20")


def run(flags: argparse.Namespace) -> None:
    def script(policy: str) -> CaseOne:
        return CaseOne(RIGID if policy == live.RIGID else ELASTIC, flags.jobs, flags.pace)

    live.run("jobs", script, flags, ROWS, panels)


class CaseOne(Script):
    """What happens, and the figures that come of it."""

    def __init__(self, shape: Shape, jobs: int, pace: float) -> None:
        self.names = [f"job-{number}" for number in range(jobs)]
        self._shape, self.pace = shape, pace

    async def play(self) -> None:
        for name in self.names:
            await self.stage.submit(name, training_job(name, self._shape))
            await asyncio.sleep(EVERY * self.pace)
        await asyncio.sleep(STAY * self.pace)

    def rehearse(self, model: Model) -> None:
        for name in self.names:
            model.submit(name, self._shape)
            self._pass(model, EVERY)
        self._pass(model, STAY)

    def figures(self) -> Figures:
        samples = self.looked.samples
        stable = between(samples, STABLE * self.pace, float("inf")) or samples[-1:]
        pendings = self.looked.pendings(self.pace)
        per_job = workers_per_job(stable)
        return {
            "pending": sum(pendings) / len(pendings),
            "longest_pending": max(pendings),
            "load": 100 * load(stable),
            "jain": jain(per_job),
            "mean_load": 100 * load(samples),
            "workers": sum(per_job),
            "waiting": sum(one.submitted - one.running for one in stable) / len(stable),
            "least_workers": min(per_job),
            "most_workers": max(per_job),
        }


def panels(runs: Mapping[str, live.Rows]) -> list[figure.Panel]:
    return [
        live.panel("jobs that wait", runs, "jobs pending"),
        live.panel("utilisation, % of the CPUs", runs, "cpu %"),
        live.panel("workers that run", runs, "running trainers"),
        live.spread("workers of the richest and of the poorest job", runs),
    ]
