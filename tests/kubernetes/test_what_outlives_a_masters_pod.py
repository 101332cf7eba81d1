"""History and sums of a TrainingJob, kept on a real API server for the master of the next pod."""

from __future__ import annotations

import pytest

from edl_allreduce.cluster.kubernetes import names
from edl_allreduce.cluster.kubernetes.inheritance import KeptInConfigMap
from tests.job.test_what_a_master_leaves import record
from tests.kubernetes.training import ROOT

pytestmark = pytest.mark.controlplane


def test_the_next_master_reads_it_and_the_last_one_no_longer_writes(controlplane, namespace, connect):
    api = connect(controlplane.kubeconfig)
    pods = names.path("pods", namespace)
    spec = {"containers": [{"name": "master", "image": "example/none:1"}]}
    pod = api.create(pods, {"metadata": {"name": "owner"}, "spec": spec})  # stands for the TrainingJob
    owner = {"apiVersion": "v1", "kind": "Pod", "metadata": pod["metadata"]}

    def master(uid: str) -> KeptInConfigMap:
        return KeptInConfigMap(api, namespace, "digits", owner, uid)

    first, second = master("first"), master("second")
    assert first.read() == (b"", [])
    first.write(b"{}", [record(1)])
    first.write(b'{"a": 1}', [record(1), record(2)])
    assert second.read() == (b'{"a": 1}', [record(1), record(2)])
    second.write(b'{"b": 1}', [record(1001)])
    first.write(b'{"a": 2}', [record(3)])
    first.write(b'{"a": 3}', [record(4)])
    assert master("third").read() == (b'{"b": 1}', [record(1001)])


def test_the_role_of_masters_allows_it(controlplane, namespace):
    controlplane.kubectl("apply", "-n", namespace, "-f", str(ROOT / "manifests/elasticdl-rbac.yaml"))
    account = f"system:serviceaccount:{namespace}:elasticdl"
    for verb in ("create", "get", "patch"):
        may = controlplane.kubectl("auth", "can-i", verb, "configmaps", "-n", namespace, f"--as={account}")
        assert may.strip() == "yes"
