"""`elasticdl autoscale`: what a policy would have done with these jobs, or would do now with a cluster's."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import msgspec
from rich.table import Table

from edl_allreduce import outside
from edl_allreduce.cli import figure
from edl_allreduce.core.autoscale import Policy, Rule
from edl_allreduce.core.autoscale.replay import Outcome, Setting, Summary, replay, summary
from edl_allreduce.core.autoscale.words import duration
from edl_allreduce.core.autoscale.workloads import BadWorkload, Submission, generate, read
from edl_allreduce.errors import DataError, UsageError
from edl_allreduce.spec.words import Parser, did_you_mean

GENERATED: Final = "generated"

ABOUT = """\
Replay a workload in simulated time: what would each policy have done with these jobs on this cluster? No
cluster is needed and nothing is started. Policies, side by side:

  speed    the next worker goes to the job whose speed it raises most in per cent, jobs nearer their end
           counting a little more; speeds are learned from the sizes that a job has run
  equal    the next worker goes to the job that is least fulfilled between its minimum and its maximum
  greedy   PaddlePaddle EDL's published rule
  rigid    no elasticity: each job has what its user asked for, or waits

  elasticdl autoscale --replay generated
  elasticdl autoscale --replay jobs.csv --slots=32 --figure=replay.svg
  elasticdl autoscale --replay workload-1.csv workload-2.csv --speeds=rates.json --output=json

With --dry_run it looks at the cluster of your kubeconfig and shows the plan that its controller would make,
with a reason for each job. Nothing is changed.

  elasticdl autoscale --dry_run
  elasticdl autoscale --dry_run --policies=equal --output=json

A CSV file has a line for each job, with the columns

  name,time,workers,seconds    when it was submitted, what its user asked for, and how many seconds it
                               would train with one worker
  max,fixed,weight,priority    if you like: its maximum (twice the ask), the share of a step that more
                               workers do not shorten (0.02), its share beside others (1), its priority (0)

or those of public workloads (name,time,application,num_replicas,batch_size) with a table of speeds, --speeds:
{"application|batch": {"W": steps, "st": {"1": seconds per step with 1 worker, "2": …}}}.
docs/autoscaler.md explains the columns of the answer.
"""


def main(argv: Sequence[str]) -> int:
    parser = _parser()
    arguments = parser.read(argv)
    if arguments.dry_run:
        from edl_allreduce.cli.dry_run import show_plan  # a replay needs no Kubernetes

        if arguments.replay:
            parser.error("--dry_run plans for a cluster, --replay for a file: choose one of them")
        rule = _rules(arguments.policies)[0]
        return show_plan(rule, _share("max_load", arguments.max_load), arguments.output)
    if not arguments.replay:
        parser.error("name what to replay: --replay generated, or --replay FILE.csv; or say --dry_run")
    setting, max_load = _setting(arguments), _share("max_load", arguments.max_load)
    rules = _rules(arguments.policies)
    workloads = {name: _workload(name, arguments) for name in arguments.replay}
    if arguments.figure:
        _check_figure(Path(arguments.figure))
    outcomes: dict[str, list[Outcome]] = {
        rule: [replay(jobs, Policy(rule=rule, max_load=max_load), setting) for jobs in workloads.values()]
        for rule in rules
    }
    found = [summary(rule, outcomes[rule]) for rule in rules]
    if arguments.output == "json":
        print(msgspec.json.encode(_as_json(workloads, setting, max_load, found)).decode())
    else:
        _show(workloads, setting, found)
    if arguments.figure:
        Path(arguments.figure).write_text(drawing(workloads, setting, outcomes), encoding="utf-8")
        if arguments.output != "json":
            print(f"figure: {outside.line(arguments.figure)}")
    return 0


def _parser() -> Parser:
    parser = Parser("elasticdl autoscale", "--dry_run | --replay generated|FILE.csv … [flags]", ABOUT)
    given = Setting()
    parser.add_argument(
        "--replay",
        nargs="+",
        metavar="FILE",
        help="CSV files of jobs, or 'generated': a workload of our own, the same for everybody",
    )
    parser.add_argument("--dry_run", action="store_true", help="the plan for the cluster as it is now")
    parser.add_argument("--speeds", metavar="FILE", help="seconds per step, for files that name applications")
    parser.add_argument(
        "--policies", metavar="NAMES", default=",".join(Rule), help=f"some of {','.join(Rule)}; default: all"
    )
    parser.add_argument("--slots", default=str(given.slots), help="workers the cluster holds (default: 64)")
    parser.add_argument("--slots_per_node", default=str(given.per_node), help="default: 4")
    parser.add_argument(
        "--pause", default=str(given.pause), help="seconds for which a re-form stops a job (default: 1)"
    )
    parser.add_argument(
        "--start_up", default=str(given.start_up), help="seconds until a new worker trains (default: 30)"
    )
    parser.add_argument(
        "--interval", default=str(given.interval), help="seconds between two looks (default: 60)"
    )
    parser.add_argument("--max_load", default="1", help="share of the slots to give (default: 1)")
    parser.add_argument(
        "--known_speed", action="store_true", help="tell the planner all speeds, as if jobs had been profiled"
    )
    parser.add_argument("--jobs", default="160", help="of a generated workload (default: 160)")
    parser.add_argument("--hours", default="8", help="in which they are submitted (default: 8)")
    parser.add_argument("--seed", default="1", help="another generated workload (default: 1)")
    parser.add_argument("--figure", metavar="FILE.svg", default="", help="draw jobs and slots over time")
    parser.add_argument(
        "--output", choices=("table", "json"), default="table", help="table, or JSON for scripts"
    )
    return parser


# ---------------------------------------------------------------------------------------------- what is asked


def _setting(arguments: argparse.Namespace) -> Setting:
    return Setting(
        slots=_count("slots", arguments.slots),
        per_node=_count("slots_per_node", arguments.slots_per_node),
        interval=_seconds("interval", arguments.interval, least=1.0),
        pause=_seconds("pause", arguments.pause),
        start_up=_seconds("start_up", arguments.start_up),
        known_speed=arguments.known_speed,
    )


def _count(flag: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 100_000:
        raise UsageError(f"--{flag}={text}: expected a whole number from 1 to 100000.")
    return int(text)


def _seconds(flag: str, text: str, least: float = 0.0) -> float:
    number = _number(text)
    if not least <= number < math.inf:
        raise UsageError(f"--{flag}={text}: expected a number not below {least:g}.")
    return number


def _share(flag: str, text: str) -> float:
    number = _number(text)
    if not 0 < number <= 1:
        raise UsageError(f"--{flag}={text}: expected a number above 0 and at most 1, such as 0.9.")
    return number


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _rules(text: str) -> list[Rule]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    known = list(Rule)
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            raise UsageError(
                f"--policies={text}: unknown policy {name!r}.{hint} There are {', '.join(known)}."
            )
    if not names:
        raise UsageError(f"--policies is empty. There are {', '.join(known)}.")
    return [Rule(name) for name in dict.fromkeys(names)]


def _workload(name: str, arguments: argparse.Namespace) -> list[Submission]:
    if name == GENERATED:
        hours = _seconds("hours", arguments.hours)
        return generate(_count("jobs", arguments.jobs), hours, _count("seed", arguments.seed))
    speeds = _text(arguments.speeds) if arguments.speeds else None
    try:
        return read(_text(name), speeds)
    except BadWorkload as error:
        raise DataError(f"{name}: {error}.") from error


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file.") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not text in UTF-8.") from None


def _check_figure(path: Path) -> None:
    """Before minutes of simulation, not after."""
    if not path.parent.is_dir():
        raise UsageError(f"--figure={path}: there is no directory {path.parent}.")
    if path.is_dir():
        raise UsageError(f"--figure={path} is a directory; name a file such as replay.svg.")


# ----------------------------------------------------------------------------------------------- the answer


def figures(one: Summary) -> tuple[str, ...]:
    """A row of a table: the policy, then completion times, waiting, load, fairness and resizes."""
    return (
        one.policy,
        f"{one.mean_completion:,.0f} s",
        f"{one.median_completion:,.0f} s",
        f"{one.p99_completion:,.0f} s",
        f"{one.mean_pending:,.0f} s",
        f"{one.utilisation:.1%}",
        f"{one.worst_unfairness:,.2f}",
        f"{one.jain:.3f}",
        f"{one.resizes:.1f}",
    )


def _show(workloads: Mapping[str, Sequence[Submission]], setting: Setting, found: Sequence[Summary]) -> None:
    what = ", ".join(outside.name(Path(name).name) for name in workloads)
    jobs = sum(len(jobs) for jobs in workloads.values())
    learned = "speeds known" if setting.known_speed else "speeds learned"
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("policy")
    columns = ("mean", "median", "p99", "pending", "in use", "unfair", "Jain", "resizes", "makespan")
    for column in columns:
        table.add_column(column, justify="right")
    for one in found:
        table.add_row(*figures(one), duration(one.makespan))
    console = outside.console()
    console.print(
        f"{what}: {jobs} jobs, {setting.slots} slots, pause {setting.pause:g} s, "
        f"start-up {setting.start_up:g} s, {learned}"
    )
    console.print(table)
    console.print(
        "mean, median, p99: from submission to end. pending: until it had workers. unfair: the worst of all, "
        "time over time on an equal share of the cluster. Jain: 1 is an even split. resizes: per job.",
        style="dim",
    )


def _as_json(
    workloads: Mapping[str, Sequence[Submission]], setting: Setting, max_load: float, found: Sequence[Summary]
) -> dict[str, object]:
    return {
        "workloads": {name: len(jobs) for name, jobs in workloads.items()},
        "setting": {**asdict(setting), "max_load": max_load},
        "policies": [asdict(one) for one in found],
    }


def drawing(
    workloads: Mapping[str, Sequence[Submission]],
    setting: Setting,
    outcomes: Mapping[str, Sequence[Outcome]],
) -> str:
    """Over time for the first workload; completion times of all."""
    first = next(iter(workloads))
    title = f"{Path(first).name}: {len(workloads[first])} jobs on {setting.slots} slots"
    over_time = {rule: found[0].samples for rule, found in outcomes.items()}
    begin = min(sample.now for samples in over_time.values() for sample in samples)
    hours = {
        rule: [((s.now - begin) / 3600, s.busy, s.running + s.pending, s.pending) for s in samples]
        for rule, samples in over_time.items()
    }
    ends = {
        rule: sorted(job.completion for outcome in found for job in outcome.jobs)
        for rule, found in outcomes.items()
    }
    panels = [
        figure.Panel(
            "jobs that are not done", "hours", {r: [(p[0], p[2]) for p in h] for r, h in hours.items()}
        ),
        figure.Panel("jobs that wait", "hours", {r: [(p[0], p[3]) for p in h] for r, h in hours.items()}),
        figure.Panel("slots in use", "hours", {r: [(p[0], p[1]) for p in h] for r, h in hours.items()}),
        figure.Panel(
            "share of jobs that were done so many seconds after their submission",
            "seconds",
            {r: [(t, (n + 1) / len(times)) for n, t in enumerate(times)] for r, times in ends.items()},
            logarithmic=True,
        ),
    ]
    return figure.svg(title, panels)
