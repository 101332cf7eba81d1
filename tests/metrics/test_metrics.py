"""What a monitor reads of a job: names by Prometheus' conventions, figures from history and status."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import yaml

from edl_allreduce.core import event_data
from edl_allreduce.core.causes import Cause
from edl_allreduce.core.goodput import Bucket
from edl_allreduce.core.job import inbox
from edl_allreduce.core.status import EventRecord
from edl_allreduce.master.metrics import Metrics
from edl_allreduce.testing.scene import OPTIONS, Scene
from tests.metrics.exported import MONITORING, NAMED, expressions, metrics, parsed, status, value


def test_history_and_status_are_told():
    found = parsed(metrics())
    assert value(found, "elasticdl_steps_total") == 40 and value(found, "elasticdl_planned_steps") == 100
    assert value(found, "elasticdl_records_total") == 4000 and value(found, "elasticdl_loss") == 0.25
    assert value(found, "elasticdl_ring_size") == 1 and value(found, "elasticdl_workers_wanted") == 2
    assert value(found, "elasticdl_job_phase", phase="training") == 1
    assert value(found, "elasticdl_job_info", job_name="digits") == 1
    assert value(found, "elasticdl_worker_exits_total", cause="out_of_memory") == 1
    assert value(found, "elasticdl_worker_relaunches_total", cause="out_of_memory") == 1
    assert value(found, "elasticdl_worker_launches_total") == 3
    assert value(found, "elasticdl_ring_plans_total", cause="loss") == 1
    assert value(found, "elasticdl_checkpoint_age_seconds") > 0
    assert value(found, "elasticdl_checkpoint_failures_total") == 1
    assert value(found, "elasticdl_rpc_messages_total", direction="received") == 70
    assert value(found, "elasticdl_streams_open") == 1 and value(found, "elasticdl_streams_total") == 3
    assert value(found, "elasticdl_straggler_score", rank="0", beside="best_rank") == 0.5
    assert value(found, "elasticdl_evaluation_metric", metric="accuracy") == 0.9


def test_time_is_told_by_bucket_and_every_bucket_is_there():
    found = parsed(metrics())
    samples = {s.labels["bucket"]: s.value for s in found["elasticdl_goodput_seconds"].samples}
    assert samples.keys() == {bucket.value for bucket in Bucket} and sum(samples.values()) == 20
    assert value(found, "elasticdl_goodput_ratio") == 0.75


def test_a_re_form_is_in_the_histograms_of_its_cause_once_with_its_phases():
    found = parsed(metrics())
    assert value(found, "elasticdl_reform_seconds_count", cause="loss", phase="all") == 1
    assert value(found, "elasticdl_reform_seconds_sum", cause="loss", phase="all") == pytest.approx(0.1)
    assert value(found, "elasticdl_reform_seconds_sum", cause="loss", phase="join") == pytest.approx(0.03)
    assert value(found, "elasticdl_worker_pending_seconds_sum") == 4
    assert value(found, "elasticdl_worker_startup_seconds_sum") == 7
    assert value(found, "elasticdl_checkpoint_seconds_sum") == pytest.approx(0.7)


def test_steps_count_with_the_time_that_they_take():
    found = parsed(metrics())
    assert value(found, "elasticdl_step_seconds_count") == 30
    assert value(found, "elasticdl_step_seconds_sum") == pytest.approx(30 * 0.05)
    assert value(found, "elasticdl_step_seconds_bucket", le="0.025") == 0
    assert value(found, "elasticdl_step_seconds_bucket", le="0.05") == 30


def test_counters_do_not_go_down_when_the_job_is_set_back():
    made = metrics()
    before = parsed(made)
    made.seen(status(step=15, position=1500))
    made._status = lambda: status(step=25, position=2500)
    after = parsed(made)
    assert value(before, "elasticdl_steps_total") == 40 and value(after, "elasticdl_steps_total") == 50
    assert value(after, "elasticdl_done_steps") == 25
    assert value(after, "elasticdl_records_total") == value(before, "elasticdl_records_total") + 1000


def test_what_is_not_known_is_left_out():
    found = parsed(metrics(loss=math.nan, checkpoint=None, metrics={}))
    assert "elasticdl_loss" not in found and "elasticdl_checkpoint_age_seconds" not in found


def relaunches(scene: Scene) -> dict[str, int]:
    """Of a job that was played."""
    made = Metrics(lambda: scene.status)
    for serial, event in enumerate(scene.events):
        made.told(EventRecord(serial, 100.0, event.kind, event.text(), event_data.to_data(event)))
    return dict(made.counts.relaunches)


@pytest.mark.parametrize("head_start", [0.0, 2.0])
def test_relaunches_have_their_own_cause_after_a_drain_as_before_it(head_start):
    scene = Scene(replace(OPTIONS, head_start=head_start)).train()
    assert relaunches(scene) == {}
    scene.give(inbox.Drain(0)).wait(10)
    assert relaunches(scene) == {"drained": 1}
    scene.crash(1, Cause.OUT_OF_MEMORY, "ran out of memory").wait(30)
    assert relaunches(scene) == {"drained": 1, "out of memory": 1}


def test_whoever_makes_room_or_comes_in_addition_replaces_nobody():
    scene = Scene().train()
    scene.give(inbox.Scale(1)).wait(10)
    scene.give(inbox.Scale(3)).wait(10)
    assert relaunches(scene) == {} and scene.ring == 3


def test_names_follow_the_conventions():
    """A prefix, words, the unit last; counters end in _total; everything is explained; labels are few."""
    for name, family in parsed(metrics()).items():
        assert NAMED.fullmatch(name), name
        assert family.documentation.endswith("."), name
        if family.type == "counter":
            assert all(s.name.endswith("_total") for s in family.samples), name
        if family.type == "histogram":
            assert name.endswith("_seconds"), name
        assert all(len(s.labels) <= 3 for s in family.samples), name
        assert not any("worker" in label or "pod" in label for s in family.samples for label in s.labels), (
            name
        )


def test_the_dashboard_asks_only_for_what_is_exported():
    exported = {s.name for family in parsed(metrics()).values() for s in family.samples}
    asked = {name for text in expressions() for name in NAMED.findall(text)}
    assert asked and asked <= exported, asked - exported


def test_the_pod_monitor_finds_the_port_and_the_labels_of_masters():
    from edl_allreduce.cluster.kubernetes import names

    monitor = yaml.safe_load((MONITORING / "pod-monitor.yaml").read_text())
    labels = {"app": names.APP, names.TYPE_LABEL: names.Replica.MASTER.value}
    assert monitor["spec"]["selector"]["matchLabels"] == labels
    assert [e["port"] for e in monitor["spec"]["podMetricsEndpoints"]] == [names.PAGE_PORT]
    assert monitor["spec"]["podTargetLabels"] == [names.JOB_LABEL]
    assert monitor["spec"]["namespaceSelector"] == {"any": True}


def test_the_network_policy_lets_prometheus_reach_the_page_of_masters_and_nothing_else():
    from edl_allreduce.cluster.kubernetes import names

    policy = yaml.safe_load((MONITORING / "network-policy.yaml").read_text())["spec"]
    labels = {"app": names.APP, names.TYPE_LABEL: names.Replica.MASTER.value}
    assert policy["podSelector"]["matchLabels"] == labels
    (rule,) = policy["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": names.PAGE_PORT}]
    assert [one["podSelector"]["matchLabels"] for one in rule["from"]] == [
        {"app.kubernetes.io/name": "prometheus"}
    ]
