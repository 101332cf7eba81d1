"""A job that everything happened to, and what its metrics say."""

from __future__ import annotations

import json
import re
from pathlib import Path

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families as families

from edl_allreduce.core import event_data, events
from edl_allreduce.core.goodput import GoodputReport
from edl_allreduce.core.status import CheckpointStatus, EventRecord, JobStatus, WorkerStatus
from edl_allreduce.master.metrics import Metrics
from edl_allreduce.master.shell import Traffic
from edl_allreduce.testing.clock import FakeClock

MONITORING = Path(__file__).resolve().parents[2] / "manifests" / "monitoring"
NAMED = re.compile(r"elasticdl_[a-z_]+")

HISTORY: tuple[tuple[float, events.Event], ...] = (
    (0.0, events.WorkerLaunched(0)),
    (0.0, events.WorkerLaunched(1)),
    (2.0, events.WorkerConnected(0, "host")),
    (2.0, events.WorkerConnected(1, "host")),
    (5.0, events.WorkerReady(0)),
    (6.0, events.WorkerReady(1)),
    (6.0, events.RingPlanned(1, (0, 1), True, "2 workers are ready", "first")),
    (9.0, events.CheckpointWritten(0, 10, "somewhere", 0.7)),
    (10.0, events.WorkerExited(1, "out of memory", "was killed")),
    (10.0, events.RingPlanned(2, (0,), True, "worker 1 is gone", "loss")),
    (10.1, events.RingReformed(0, 2, 1, 0.02, 0.01, 0.03, 0.0, 0.04)),
    (10.2, events.WorkerLaunched(2, "out of memory")),
    (11.0, events.ModelEvaluated(20, {"accuracy": 0.9})),
    (12.0, events.CheckpointMissing(0, 30, "somewhere", "the disk is full")),
    (13.0, events.WorkerSlow(0, 0.3, 0.1, False)),
)


def status(**changes: object) -> JobStatus:
    known: dict[str, object] = {
        "job_name": "digits",
        "phase": "Training",
        "wanted": 2,
        "minimum": 1,
        "generation": 2,
        "step": 40,
        "total_steps": 100,
        "loss": 0.25,
        "records_per_second": 400.0,
        "steps_per_second": 20.0,
        "waiting_for": "",
        "elapsed": 20.0,
        "workers": [
            WorkerStatus(0, "host", "ring", 0, "computing", 40, compute_seconds=0.1, best_rank_score=0.5),
            WorkerStatus(2, "", "starting", -1, "", 0),
        ],
        "events": [],
        "metrics": {"accuracy": 0.9, 'a "quoted"\nname': 1.0},
        "position": 4000,
        "checkpoint": CheckpointStatus(10, "somewhere", 90.0),
        "goodput": GoodputReport(20.0, {"productive_step": 15.0, "program_startup": 5.0}, 40.0, {}),
    }
    return JobStatus(**{**known, **changes})  # type: ignore[arg-type]


def metrics(**changes: object) -> Metrics:
    made = Metrics(lambda: status(**changes), lambda: Traffic(1, 3, 70, 30), FakeClock(wall=100.0))
    for serial, (wall, event) in enumerate(HISTORY):
        made.told(EventRecord(serial, wall, event.kind, event.text(), event_data.to_data(event)))
    made.seen(status(step=10))
    made.seen(status(step=40))
    return made


def parsed(made: Metrics) -> dict[str, Metric]:
    body, _ = made.render()
    return {family.name: family for family in families(body.decode())}


def value(found: dict[str, Metric], sample: str, **labels: str) -> float:
    matches = [
        s.value
        for family in found.values()
        for s in family.samples
        if s.name == sample and all(s.labels.get(name) == wanted for name, wanted in labels.items())
    ]
    assert len(matches) == 1, f"{sample}{labels}: {matches}"
    return matches[0]


def expressions() -> list[str]:
    """What the dashboard for Grafana asks for."""
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    variables = [v["query"]["query"] for v in dashboard["templating"]["list"] if v["type"] == "query"]
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]] + variables
