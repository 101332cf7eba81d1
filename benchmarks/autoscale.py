"""How long does one plan of the autoscaler take, at the sizes that clusters have?

    python -m benchmarks.autoscale [--sizes 1000x8x200,512x4x960] [--rounds 5] [--json FILE]

A size is nodes x devices on each x jobs. `first`: jobs of all sorts come to an empty cluster. `steady`: the
cluster as that plan left it, all jobs measured, nothing new. `arrival`: the same when a tenth of the jobs
is new and a hundred services wait. Pods of services with odd sizes run on every third node, so that few nodes
are alike. There is no peer: nobody publishes the time of a plan.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import replace
from pathlib import Path

from benchmarks import frame
from benchmarks.frame import BenchmarkFailed, Figure, Report
from edl_allreduce import clock
from edl_allreduce.core.autoscale import Cluster, Job, Node, Plan, Pod, Policy, Role, Template, plan
from edl_allreduce.core.autoscale.jobs import Speed

GPU = "nvidia.com/gpu"
WANTED = 1.0
"""Seconds for 1,000 nodes and 200 jobs."""
SIZES = "1000x8x200,512x4x960"

World = tuple[Cluster, list[Job], list[Pod]]


def main(argv: list[str] | None = None) -> int:
    return frame.run(measure, flags, argv)


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", default=SIZES, help="nodes x devices on each x jobs")
    parser.add_argument("--rounds", type=int, default=5)


def measure(settings: argparse.Namespace, directory: Path) -> Report:
    """Seconds per plan, in three situations."""
    report = Report("autoscale", "seconds for one plan", ("cluster", "first", "steady", "arrival", "workers"))
    slowest = {}
    for size in settings.sizes.split(","):
        nodes, devices, jobs = _numbers(size)
        with frame.said(size):
            empty = world(nodes, devices, jobs)
            policy = Policy(most_starts=10**6)
            first, found = _timed(empty, policy, settings.rounds)
            settled = carried_out(found, empty)
            steady, _ = _timed(settled, policy, settings.rounds)
            arrival, _ = _timed(with_arrivals(settled), policy, settings.rounds)
        figures = {"first": first, "steady": steady, "arrival": arrival}
        for name, figure in figures.items():
            report.keep(f"{size}, {name}, s", figure)
        workers = sum(found.targets.values())
        shown = [figure.text("{:.2f}") for figure in figures.values()]
        report.rows.append(
            (f"{nodes:,} nodes, {nodes * devices:,} devices, {jobs} jobs", *shown, f"{workers:,}")
        )
        slowest[size] = max(figure.median for figure in figures.values())
    said = ", ".join(f"{size}: {seconds:.2f} s" for size, seconds in slowest.items())
    report.verdict = f"the slowest plan of {said}; wanted < {WANTED:g} s for 1,000 nodes and 200 jobs"
    return report


def _numbers(size: str) -> tuple[int, int, int]:
    try:
        nodes, devices, jobs = (int(part) for part in size.split("x"))
    except ValueError:
        raise BenchmarkFailed(
            f"--sizes: {size!r}; expected nodes x devices x jobs, as in 1000x8x200"
        ) from None
    return nodes, devices, jobs


def _timed(there: World, policy: Policy, rounds: int) -> tuple[Figure, Plan]:
    seconds = []
    for _ in range(rounds):
        began = clock.now()
        found = plan(*there, now=3600.0, policy=policy)
        seconds.append(clock.now() - began)
    return Figure.of(seconds), found


def world(nodes: int, devices: int, jobs: int) -> World:
    """Jobs of all sorts before their beginning, on a cluster where some services run."""
    draw = random.Random(1)
    there = [
        Node(f"node-{n}", {"cpu": 64_000, "memory": 256 << 30, GPU: devices, "pods": 110})
        for n in range(nodes)
    ]
    worker = Template({"cpu": 4_000, "memory": 16 << 30, GPU: 1})
    master = Template({"cpu": 500, "memory": 1 << 30})
    found = []
    for number in range(jobs):
        curve = Speed(1.0, draw.choice((0.002, 0.01, 0.05)))
        most = draw.choice((4, 8, 16, 32, 64, 128))
        found.append(
            Job(
                f"job-{number}",
                1,
                most,
                worker,
                master=master,
                remaining=10 ** draw.uniform(3, 6),
                measured={size: curve.step(size) for size in (1, 2, 4, 8, 16, 32, 64) if size <= most},
                weight=draw.choice((1.0, 1.0, 2.0)),
            )
        )
    pods = [
        Pod(f"service-{n}", Template({"cpu": 100 * draw.randint(1, 40), "memory": 1 << 30}), f"node-{n}")
        for n in range(0, nodes, 3)
    ]
    return Cluster(there), found, pods


def carried_out(found: Plan, before: World) -> World:
    """The same cluster once the plan is done."""
    there, jobs, pods = before
    after = list(pods)
    for job in jobs:
        for number, node in enumerate(found.decisions[job.name].places):
            after.append(Pod(f"{job.name}-{number}", job.worker, node, Role.WORKER, job.name))
        master = f"{job.name}-master"
        if job.master is not None and master in found.room:
            after.append(Pod(master, job.master, found.room[master], Role.MASTER, job.name))
    return there, [replace(job, workers=found.targets[job.name]) for job in jobs], after


def with_arrivals(before: World) -> World:
    """A tenth of the jobs has not begun yet, and a hundred services wait."""
    there, jobs, pods = before
    new = {job.name for job in jobs[::10]}
    jobs = [replace(job, workers=0, measured={}) if job.name in new else job for job in jobs]
    served = [Pod(f"waits-{n}", Template({"cpu": 8_000, GPU: 2}), priority=1000) for n in range(100)]
    return there, jobs, [pod for pod in pods if pod.job not in new] + served


if __name__ == "__main__":
    raise SystemExit(main())
