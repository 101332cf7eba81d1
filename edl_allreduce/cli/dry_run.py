"""`elasticdl autoscale --dry_run`: what the controller's next plan would be, from the cluster as it is."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.table import Table

from edl_allreduce import clock, outside
from edl_allreduce.cluster.kubernetes import training_jobs
from edl_allreduce.cluster.kubernetes.api import Api
from edl_allreduce.controller.jobs import Book
from edl_allreduce.controller.mirror import JOBS, look
from edl_allreduce.controller.planning import situation
from edl_allreduce.core.autoscale import Decision, Plan, Policy, Rule
from edl_allreduce.core.autoscale.words import duration
from edl_allreduce.errors import ClusterError


def show_plan(rule: Rule, max_load: float, output: str) -> int:
    """Look once, plan, and change nothing."""
    api = Api.connect()
    if not training_jobs.installed(api):
        raise ClusterError(
            "this cluster has no TrainingJobs, so there is nothing to plan. "
            "Install them and their controller: kubectl apply -k manifests/controller"
        )
    mirror, book = look(api), Book()
    book.update(dict(mirror.objects[JOBS.kind]))
    now = clock.wall()
    plan = situation(mirror, book).planned(now, Policy(rule=rule, max_load=max_load))
    if output == "json":
        print(msgspec.json.encode(_as_json(plan)).decode())
    else:
        _print(plan, now)
    return 0


def _as_json(plan: Plan) -> dict[str, Any]:
    return {
        "jobs": list(plan.decisions.values()),
        "waiting": list(plan.waiting),
        "load": dict(plan.load or {}),
    }


def _print(plan: Plan, now: float) -> None:
    console = outside.console()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("job", "workers", "begins", "ends", "why"):
        table.add_column(column)
    for decision in plan.decisions.values():
        starts, ends = (_when(at, now) for at in (decision.starts, decision.ends))
        table.add_row(
            outside.name(decision.job), _size(decision), starts, ends, outside.line(decision.reason)
        )
    console.print(table if plan.decisions else "No TrainingJob is there to plan for.")
    for one in plan.waiting:
        console.print(f"{outside.name(one.pod)} {outside.line(one.reason)}")
    load = ", ".join(
        f"{outside.name(name)} {share:.0%}" for name, share in (plan.load or {}).items() if share
    )
    console.print(f"spoken for afterwards: {load or 'nothing'}", style="dim")


def _size(decision: Decision) -> str:
    if decision.before == decision.target:
        return str(decision.target)
    return f"{decision.before}→{decision.target}"


def _when(at: float | None, now: float) -> str:
    return "" if at is None else f"in {duration(at - now)}"
