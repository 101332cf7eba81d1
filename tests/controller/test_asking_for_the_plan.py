"""`elasticdl autoscale --dry_run`, and what the kubelet and Prometheus ask of a controller."""

from __future__ import annotations

import asyncio
import json

import pytest

from edl_allreduce.cli import autoscale
from edl_allreduce.cluster.kubernetes.api import Api
from edl_allreduce.controller import process
from edl_allreduce.controller.endpoint import Endpoint
from edl_allreduce.errors import UsageError
from tests.controller.conftest import NAMESPACE, Lab


def test_a_dry_run_shows_the_plan_with_reasons_and_changes_nothing(lab: Lab, monkeypatch, capsys):
    monkeypatch.setattr(Api, "connect", lambda **_: lab.api)
    lab.job()
    lab.service("large", cpu=100)
    assert autoscale.main(["--dry_run"]) == 0
    shown = capsys.readouterr().out
    assert f"{NAMESPACE}/job" in shown and "0→4" in shown and "begins" in shown
    assert "waits for 100 CPUs on one node" in shown
    assert autoscale.main(["--dry_run", "--output=json"]) == 0
    (decision,) = json.loads(capsys.readouterr().out)["jobs"]
    assert decision["target"] == 4
    assert {method for method, _ in lab.api.requests if method != "POST"} == {"GET"}
    assert lab.master() is None


def test_health_readiness_and_metrics(lab: Lab, play):
    async def story():
        controller = lab.controller()
        endpoint = Endpoint(controller)
        port = await endpoint.start("127.0.0.1", 0)

        async def ask(path: str, method: str = "GET") -> tuple[str, str]:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
            writer.close()
            return head.splitlines()[0].partition(" ")[2], body

        assert await ask("/healthz") == ("200 OK", "ok\n")
        status, words = await ask("/readyz")
        assert status.startswith("503") and "trainingjobs.elasticdl.org" in words
        lab.job()
        await lab.turn(controller)
        assert await ask("/readyz") == ("200 OK", "ok\n")
        _, text = await ask("/metrics")
        assert "elasticdl_controller_leader 1\n" in text
        assert 'elasticdl_controller_jobs{phase="Pending"} 1' in text
        assert f'elasticdl_controller_job_workers_target{{namespace="{NAMESPACE}",job="job"}} 4' in text
        assert (await ask("/healthz", "POST"))[0].startswith("405")
        assert (await ask("/etc/passwd"))[0].startswith("404")
        endpoint.close()

    play(story())


def test_the_flags_of_the_documents_are_understood_and_wrong_ones_are_refused():
    arguments = process._parser().read(["--log_level=debug", "--max_load_desired=0.9"])
    assert process.policy_of(arguments.autoscale_policy, arguments.max_load).max_load == 0.9
    assert process.policy_of("off", "1") is None
    for wrong in ("0", "1.5", "much", "nan"):
        with pytest.raises(UsageError, match="above 0 and at most 1"):
            process.policy_of("speed", wrong)


def test_a_cluster_without_the_resource_or_the_right_to_look_is_told_with_the_cure(lab: Lab):
    rule = lab.api.refuse("GET", "/nodes$", status=403)
    with pytest.raises(
        process.ClusterError, match=r"may not list nodes.*kubectl apply -k manifests/controller"
    ):
        process._check(lab.api)
    assert rule.fired
    lab.api.refuse("GET", "/trainingjobs$", status=404)
    with pytest.raises(process.ClusterError, match=r"kubectl apply -f manifests/crd/trainingjob.yaml"):
        process._check(lab.api)
