"""`elasticdl jobs --cluster`: the TrainingJobs of a cluster, what is planned for each, and why."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.table import Table

from edl_allreduce import outside
from edl_allreduce.cluster.kubernetes import training_jobs
from edl_allreduce.cluster.kubernetes.api import Api
from edl_allreduce.cluster.kubernetes.training_jobs import Account
from edl_allreduce.errors import ClusterError

REASON = 60
"""Characters of a reason in the table; `--output=json` has all of it."""


def list_cluster(output: str, namespace: str) -> int:
    """All of a namespace; without one, of the cluster."""
    api = Api.connect()
    if not training_jobs.installed(api):
        raise ClusterError(
            "this cluster has no TrainingJobs: kubectl apply -f manifests/crd/trainingjob.yaml "
            "(`elasticdl status --namespace=NAME` lists jobs without a controller)."
        )
    accounts = [training_jobs.account(each) for each in training_jobs.listed(api, namespace)]
    if output == "json":
        print(msgspec.json.encode(accounts).decode())
    elif not accounts:
        print(f"No TrainingJob in {f'namespace {namespace}' if namespace else 'this cluster'}.")
    else:
        outside.console().print(table(accounts))
    return 0


def table(accounts: Sequence[Account]) -> Table:
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("namespace", "job", "phase", "workers", "min-max", "done", "starts", "ends", "why"):
        made.add_column(column, justify="right" if column in ("workers", "min-max", "done") else "left")
    for each in accounts:
        made.add_row(
            outside.name(each.namespace),
            outside.name(each.name),
            outside.name(each.phase),
            f"{each.ready}/{each.target}",
            f"{each.minimum}-{each.maximum}",
            "-" if each.percent is None else f"{each.percent} %",
            _moment(each.starts),
            _moment(each.ends),
            outside.line(each.reason, REASON),
        )
    return made


def _moment(wall: float | None) -> str:
    return "-" if wall is None else outside.moment(wall, "%m-%d %H:%M")
