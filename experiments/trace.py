"""Many jobs on few slots, in simulated time: mean completion times and fairness of four rules.

Without --workload the jobs are drawn by our own generator (`core/autoscale/workloads.py` states all of its
parameters), three draws of 160 jobs on 64 slots. The planner is the one that the controller calls.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from edl_allreduce.cli.autoscale import drawing, figures
from edl_allreduce.core.autoscale import Policy, Rule
from edl_allreduce.core.autoscale.replay import Outcome, Setting, Summary, replay, summary
from edl_allreduce.core.autoscale.workloads import BadWorkload, Submission, generate, read
from edl_allreduce.errors import DataError
from experiments import report

SEEDS = (1, 2, 3)
RESTART = 30.0
"""Seconds for which a job stands still in a resize where that means a restart, as with the published ones."""
PUBLISHED: Mapping[str, tuple[str, str]] = {
    "greedy, published": ("4,026 s", "3.2"),
    "Pollux, published (may change the batch)": ("2,751 s", ""),
}
"""Of the eight public workloads, by others: mean completion time and worst fairness."""
COLUMNS = ("workload", "policy", "job", "submitted", "began", "ended", "fair_seconds", "resizes")


def add_flags(parser: argparse.ArgumentParser) -> None:
    given = Setting()
    parser.add_argument("--workload", nargs="+", metavar="FILE", help="CSV files; default: our generator")
    parser.add_argument("--speeds", type=Path, help="seconds per step, for files that name applications")
    parser.add_argument("--jobs", type=int, default=160, help="of a generated workload (default: 160)")
    parser.add_argument("--slots", type=int, default=given.slots, help="default: 64")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=SEEDS, help="of our generator (default: 1 2 3)"
    )


def run(flags: argparse.Namespace) -> None:
    workloads = _workloads(flags)
    setting = Setting(slots=flags.slots)
    outcomes = {
        rule.value: [replay(jobs, Policy(rule=rule), setting) for jobs in workloads.values()] for rule in Rule
    }
    slow = Setting(slots=flags.slots, pause=RESTART)
    name = f"greedy, {RESTART:.0f} s per resize"
    restarted = [replay(jobs, Policy(rule=Rule.GREEDY), slow) for jobs in workloads.values()]
    found = [summary(rule, outcomes[rule]) for rule in outcomes] + [summary(name, restarted)]
    stem = "trace" if flags.workload is None else "trace-public"
    rows = [
        row
        for rule, several in outcomes.items()
        for row in _rows(rule, dict(zip(workloads, several, strict=True)))
    ]
    report.write_csv(flags.out / f"{stem}.csv", COLUMNS, rows)
    report.write(flags.out / f"{stem}.svg", drawing(workloads, setting, outcomes))
    text = _text(workloads, setting, found, public=flags.workload is not None)
    report.write(flags.out / f"{stem}.md", text)
    print(text)


def _workloads(flags: argparse.Namespace) -> dict[str, list[Submission]]:
    if flags.workload is None:
        return {f"generated-{seed}": generate(flags.jobs, seed=seed) for seed in flags.seeds}
    speeds = flags.speeds.read_text(encoding="utf-8") if flags.speeds else None
    found = {}
    for name in flags.workload:
        try:
            found[Path(name).stem] = read(Path(name).read_text(encoding="utf-8"), speeds)
        except BadWorkload as error:
            raise DataError(f"{name}: {error}.") from error
    return found


def _rows(rule: str, outcomes: Mapping[str, Outcome]) -> list[dict[str, object]]:
    return [
        {
            "workload": workload,
            "policy": rule,
            "job": job.name,
            "submitted": f"{job.submitted:.1f}",
            "began": f"{job.began:.1f}",
            "ended": f"{job.ended:.1f}",
            "fair_seconds": f"{job.fair:.1f}",
            "resizes": job.resizes,
        }
        for workload, outcome in outcomes.items()
        for job in outcome.jobs
    ]


def _text(
    workloads: Mapping[str, Sequence[Submission]], setting: Setting, found: Sequence[Summary], public: bool
) -> str:
    jobs = sum(len(jobs) for jobs in workloads.values())
    head = (
        f"{', '.join(workloads)}: {jobs} jobs, {setting.slots} slots, pause {setting.pause:g} s, "
        f"start-up {setting.start_up:g} s, speeds learned\n\n"
    )
    rows: list[list[object]] = [list(figures(one)) for one in found]
    if public:
        rows += [[name, mean, "", "", "", "", worst, "", ""] for name, (mean, worst) in PUBLISHED.items()]
    columns = ("", "mean", "median", "p99", "pending", "in use", "worst fairness", "Jain", "resizes per job")
    return head + report.table(columns, rows) + "\n"
