"""The pods of a plain Job agree on who is who."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl_allreduce.errors import UsageError
from edl_allreduce.spec import parse_job
from edl_allreduce.worker.start import kubernetes_job
from edl_allreduce.worker.start.kubernetes_job import find_place, settings_of

GUIDE = {
    "JOB_NAME": "paddle-cluster-job",
    "JOB_PATH": "/home/jobpath",
    "JOB_NAMESPACE": "default",
    "TRAIN_CONFIG_DIR": "quick_start",
    "CONF_PADDLE_NIC": "eth0",
    "CONF_PADDLE_PORT": "7164",
    "CONF_PADDLE_PORTS_NUM": "2",
    "CONF_PADDLE_PORTS_NUM_SPARSE": "2",
    "CONF_PADDLE_GRADIENT_NUM": "3",
}


def pod(address, phase="Running", uid="u"):
    return {
        "metadata": {"ownerReferences": [{"kind": "Job", "controller": True, "uid": uid}] if uid else []},
        "status": {"phase": phase, "podIP": address},
    }


def test_the_variables_of_the_guide_are_understood():
    settings = settings_of(GUIDE)
    assert settings.size == 3
    assert settings.port == 7164
    assert settings.output == Path("/home/jobpath/paddle-cluster-job/output")
    assert settings.model_zoo == "/home/jobpath/paddle-cluster-job/quick_start"


def test_a_missing_variable_is_named():
    with pytest.raises(UsageError, match="JOB_PATH"):
        settings_of({"JOB_NAME": "x", "CONF_PADDLE_GRADIENT_NUM": "3"})


def test_ranks_follow_the_addresses_sorted_as_text():
    pods = [pod("10.0.0.9"), pod("10.0.0.10"), pod("10.0.0.2")]
    places = [find_place(pods, 3, address) for address in ("10.0.0.10", "10.0.0.2", "10.0.0.9")]
    assert [place.rank for place in places] == [0, 1, 2]
    assert len({place.token for place in places}) == 1
    assert places[0].master(7164) == "10.0.0.10:7164"


def test_nobody_starts_before_all_run():
    pods = [pod("10.0.0.1"), pod("10.0.0.2"), pod("10.0.0.3", "Pending")]
    assert find_place(pods, 3, "10.0.0.1") is None


def test_pods_that_ended_do_not_count():
    pods = [pod("10.0.0.1"), pod("10.0.0.2"), pod("10.0.0.3", "Failed"), pod("10.0.0.4")]
    assert find_place(pods, 3, "10.0.0.4").rank == 2


def test_two_jobs_do_not_share_a_token():
    mine, other = (find_place([pod("10.0.0.1", uid=uid)], 1, "10.0.0.1") for uid in "ab")
    assert mine.token != other.token


def test_a_pod_that_only_says_that_it_belongs_to_the_job_is_no_rank_and_changes_no_token():
    pods = [pod("10.0.0.1"), pod("10.0.0.2")]
    honest = find_place(pods, 2, "10.0.0.2")
    for stranger in (pod("10.0.0.0", uid=""), pod("10.0.0.0", uid="another")):
        assert find_place([stranger, *pods], 2, "10.0.0.2") == honest
    assert find_place([pod("10.0.0.1", uid="")], 1, "10.0.0.1") is None, "no token that anybody could guess"


def test_an_address_of_tomorrow_is_written_in_brackets():
    assert find_place([pod("fd00::1")], 1, "fd00::1").master(7164) == "[fd00::1]:7164"


def test_flags_are_passed_on_and_the_layout_of_the_guide_fills_the_rest():
    settings = settings_of(GUIDE)
    place = find_place([pod(f"10.0.0.{i}") for i in range(1, 4)], 3, "10.0.0.2")
    flags = kubernetes_job.job_flags(settings, ["--model_def=a.b", "--num_epochs=10", "--output=/elsewhere"])
    spec = parse_job("worker", kubernetes_job.worker_command(settings, place, flags)[2:]).spec
    assert spec.training_data == "/home/jobpath/paddle-cluster-job/*/data/*"
    assert (spec.num_epochs, spec.output, spec.worker_id) == (10, "/elsewhere", 1)
    assert spec.master_addr == "10.0.0.1:7164"
    assert spec.passes_dir == "/home/jobpath/paddle-cluster-job/output", "the models of all epochs"
    master = parse_job("master", kubernetes_job.master_command(settings, flags)[2:]).spec
    assert (master.num_workers, master.min_workers, master.port) == (0, 3, 7164)
