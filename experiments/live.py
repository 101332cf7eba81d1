"""What the two experiments on a real API server have in common: one run per policy, then table and figure."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import csv
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from edl_allreduce.cli import figure
from edl_allreduce.cluster.kubernetes.api import Api
from edl_allreduce.core.autoscale import Rule
from edl_allreduce.errors import UsageError
from experiments import report
from experiments.collector import COLUMNS, Collector, Looked
from experiments.lab import NAMESPACE, PUBLISHED, Nodes, control_plane, controller, cpus, parse_nodes
from experiments.model import Model
from experiments.players import Play
from experiments.stage import Stage
from kubelab import Cluster

SIMULATED = "-simulated"
OURS, RIGID, GREEDY = "ours", "rigid", "greedy"
FLAGS: Mapping[str, Sequence[str]] = {
    OURS: (),
    RIGID: ("--autoscale_policy=off",),
    GREEDY: ("--autoscale_policy=greedy", "--max_load=0.9"),
}
"""Of the controller, by policy. 0.9 is what the published controller most likely ran with."""
RULES: Mapping[str, tuple[Rule, float]] = {
    OURS: (Rule.SPEED, 1.0),
    RIGID: (Rule.RIGID, 1.0),
    GREEDY: (Rule.GREEDY, 0.9),
}
"""The same for a run in simulated time."""
ABOUT: Mapping[str, Sequence[str]] = {
    "pace": ("waits of the script, published = 1", "times", "1", "1", ""),
    "machine": ("programs that wanted a core of this machine, the last 5 minutes", "per core", "", "", ""),
}
"""Of the run itself: on a machine that is busy with something else everything real takes longer."""
Figures = dict[str, float | None]
"""None: what was waited for did not happen, within the seconds of the figure with this ending."""
WITHIN = "_within"
Rows = Sequence[Mapping[str, str]]
"""A CSV file of a run, as it was read again."""


class Script:
    """One experiment: what happens, and the figures that come of it."""

    names: list[str]
    pace: float
    stage: Stage
    collector: Collector
    looked: Looked
    api: Api

    async def prepare(self) -> None:
        """Before the collector starts."""

    async def play(self) -> None:
        raise NotImplementedError

    def rehearse(self, model: Model) -> None:
        """The same in simulated time."""
        raise NotImplementedError

    def figures(self) -> Figures:
        raise NotImplementedError

    def _pass(self, model: Model, seconds: float) -> None:
        for _ in range(round(seconds * self.pace)):
            model.second(self.names)

    async def _call(self, method: Callable[..., Any], *arguments: object) -> Any:
        return await asyncio.to_thread(method, *arguments)


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--policies", default=",".join(FLAGS), help=f"some of {', '.join(FLAGS)}; default: all of them"
    )
    parser.add_argument(
        "--nodes",
        default=",".join(f"{one.count}x{one.cpu}" for one in PUBLISHED),
        help="how many with how many CPUs (default: %(default)s); fewer for a smaller machine",
    )
    parser.add_argument(
        "--resume", action="store_true", help="only those policies whose files are not in --out yet"
    )
    parser.add_argument(
        "--simulated",
        action="store_true",
        help="no cluster: simulated time, with a scheduler and nodes that are modelled",
    )
    parser.add_argument(
        "--pace",
        type=float,
        default=1.0,
        help="waits of the experiment are so many times as long as published (default: 1)",
    )


def run(
    name: str,
    script: Callable[[str], Script],
    flags: argparse.Namespace,
    rows: Mapping[str, Sequence[str]],
    panels: Callable[[Mapping[str, Rows]], list[figure.Panel]],
) -> None:
    """Each policy on a cluster of its own. Table and figure are there after each, with all that are done."""
    nodes = parse_nodes(flags.nodes)
    policies = [one for one in flags.policies.split(",") if one]
    for policy in policies:
        if policy not in FLAGS:
            raise UsageError(f"--policies: unknown policy {policy!r}. There are {', '.join(FLAGS)}.")
    logging.basicConfig(level=logging.WARNING)
    stem = f"{name}{SIMULATED if flags.simulated else ''}"
    for policy in policies:
        if flags.resume and (flags.out / f"{stem}-{policy}.json").exists():
            print(f"{name}, {policy}: done before, in {flags.out}", flush=True)
            conclude(stem, flags.out, rows, panels)
            continue
        print(f"{name}, {policy}: {sum(one.count for one in nodes)} nodes, {cpus(nodes)} CPUs", flush=True)
        if flags.simulated:
            found = rehearse(nodes, stem, policy, script(policy), flags.out)
        else:
            with control_plane(nodes) as cluster:
                found = perform(cluster, nodes, stem, policy, script(policy), flags.out)
        told = [key for key in found if not key.endswith(WITHIN)]
        print(", ".join(f"{key} {_missed(found, key) or f'{found[key]:.4g}'}" for key in told), flush=True)
        conclude(stem, flags.out, rows, panels)


def perform(
    cluster: Cluster,
    nodes: tuple[Nodes, ...],
    name: str,
    policy: str,
    script: Script,
    out: Path,
    play: Play = Play(),  # noqa: B008  frozen
) -> Figures:
    """One run; writes its samples and its figures."""
    logs = out / f"{name}-{policy}"
    logs.mkdir(parents=True, exist_ok=True)
    with _kubeconfig(cluster.kubeconfig), controller(cluster, logs, *FLAGS[policy]):
        asyncio.run(_perform(script, play, cpus(nodes)))
    return _keep(out / f"{name}-{policy}", script, {"machine": os.getloadavg()[1] / (os.cpu_count() or 1)})


@contextlib.contextmanager
def _kubeconfig(path: Path) -> Iterator[None]:
    """For clients that are made meanwhile."""
    before = os.environ.get("KUBECONFIG")
    os.environ["KUBECONFIG"] = str(path)
    try:
        yield
    finally:
        if before is None:
            del os.environ["KUBECONFIG"]
        else:
            os.environ["KUBECONFIG"] = before


def rehearse(nodes: tuple[Nodes, ...], name: str, policy: str, script: Script, out: Path) -> Figures:
    """One run in simulated time; writes the same files."""
    rule, max_load = RULES[policy]
    script.looked = model = Model(nodes, rule, max_load, Play())
    script.rehearse(model)
    return _keep(out / f"{name}-{policy}", script, {})


def _keep(stem: Path, script: Script, more: Figures) -> Figures:
    found = {"pace": script.pace, **more, **script.figures()}
    report.write_csv(stem.with_suffix(".csv"), COLUMNS, [sample.row() for sample in script.looked.samples])
    stem.with_suffix(".json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    return found


async def _perform(script: Script, play: Play, total: int) -> None:
    script.api = Api.connect()
    script.stage = Stage(script.api, NAMESPACE, play)
    script.stage.start()
    try:
        await script.prepare()
        script.looked = script.collector = Collector(script.stage, script.names, total)
        watching = asyncio.create_task(script.collector.run())
        await script.play()
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
        if script.stage.lost_masters:
            raise RuntimeError(f"masters were lost: {', '.join(script.stage.lost_masters)}")
    finally:
        script.stage.close()


# --------------------------------------------------------------------------------------- table and figure


def conclude(
    stem: str,
    out: Path,
    rows: Mapping[str, Sequence[str]],
    panels: Callable[[Mapping[str, Rows]], list[figure.Panel]],
) -> None:
    """From all runs whose files are there, also those of an earlier command."""
    there = [policy for policy in FLAGS if (out / f"{stem}-{policy}.json").exists()]
    figures = {one: json.loads((out / f"{stem}-{one}.json").read_text()) for one in there}
    runs = {one: _read(out / f"{stem}-{one}.csv", figures[one]["pace"]) for one in there}
    told = {key: row for key, row in ABOUT.items() if any(key in one for one in figures.values())}
    head = ["", "published, on", "published, off", *there, "to reach"]
    lines = [
        [
            f"{words}, {unit}" if unit else words,
            on,
            off,
            *(_shown(figures[one], key, unit) for one in there),
            wanted,
        ]
        for key, (words, unit, on, off, wanted) in {**rows, **told}.items()
    ]
    text = report.table(head, lines) + "\n"
    report.write(out / f"{stem}.md", text)
    report.write(out / f"{stem}.svg", figure.svg(f"experiment-{stem}", panels(runs)))
    print(text)


def _missed(figures: Figures, key: str) -> str:
    """Words for what did not happen; empty for a number."""
    seconds = figures.get(f"{key}{WITHIN}")
    return "" if seconds is None else f"not within {seconds:.0f} s"


def _shown(figures: Figures, key: str, unit: str) -> str:
    value = figures.get(key)
    if value is None:
        return _missed(figures, key)
    return f"{value:.3f}" if not unit and value <= 1 else f"{value:.1f}"


def _read(path: Path, pace: float) -> Rows:
    """With the times of the published script: runs of another pace have their steps at the same place."""
    with path.open(newline="", encoding="utf-8") as file:
        return [{**row, "time": str(float(row["time"]) / pace)} for row in csv.DictReader(file)]


def panel(title: str, runs: Mapping[str, Rows], column: str) -> figure.Panel:
    series = {name: [(float(row["time"]), float(row[column])) for row in rows] for name, rows in runs.items()}
    return figure.Panel(title, "seconds of the published script", series)


def spread(title: str, runs: Mapping[str, Rows]) -> figure.Panel:
    """The largest and the smallest size of jobs that were there, of each run."""
    series: dict[str, list[tuple[float, float]]] = {}
    for name, rows in runs.items():
        for row in rows:
            there = len(row["trainers per job"].split("|")) - int(row["jobs not existing"])
            sizes = [int(size) for size in row["trainers per job"].split("|")][:there] or [0]
            series.setdefault(name, []).append((float(row["time"]), max(sizes)))
            series.setdefault(f"{name}, poorest", []).append((float(row["time"]), min(sizes)))
    return figure.Panel(title, "seconds of the published script", series)
