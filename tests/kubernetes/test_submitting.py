"""`elasticdl train --image_name=…`: everything is checked before anything is made."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from edl_allreduce.cluster.kubernetes import names
from edl_allreduce.cluster.kubernetes.manifests import MasterContext, worker_pod
from edl_allreduce.cluster.kubernetes.submit import submit
from edl_allreduce.errors import ClusterError, ClusterUnreachable
from kubelab import eventually
from tests.kubernetes.conftest import cluster_for, spec_for, until

pytestmark = pytest.mark.controlplane

RBAC = Path(__file__).resolve().parents[2] / "manifests" / "elasticdl-rbac.yaml"
KINDS = "pods,services,secrets,configmaps,networkpolicies"


@pytest.fixture
def allowed(controlplane, namespace, connect):
    """The namespace is ready for jobs, and this process is an administrator."""
    connect(controlplane.kubeconfig)
    controlplane.kubectl("apply", "-n", namespace, "-f", str(RBAC))
    return namespace


def objects(controlplane, namespace):
    text = controlplane.kubectl("get", KINDS, "-n", namespace, "-l", "app=elasticdl", "-o", "name")
    return sorted(text.split())


def test_a_job_is_a_pod_that_owns_its_secret_and_service(controlplane, allowed, capsys):
    assert submit(spec_for(allowed)) == 0
    assert objects(controlplane, allowed) == [
        "networkpolicy.networking.k8s.io/elasticdl-job",
        "pod/elasticdl-job-master",
        "secret/elasticdl-job",
        "service/elasticdl-job-master",
    ]
    assert "elasticdl-job-master" in capsys.readouterr().out
    controlplane.kubectl("delete", "pod", "-n", allowed, "elasticdl-job-master", "--wait=false")
    eventually(lambda: not objects(controlplane, allowed), "deleting the master removes all", 60)


def test_pods_of_a_job_pass_the_restricted_level(controlplane, allowed):
    level = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    controlplane.api.patch(f"/api/v1/namespaces/{allowed}", level)
    assert submit(spec_for(allowed)) == 0
    worker = worker_pod(spec_for(allowed), 0, 0, MasterContext("10.0.0.1:50001"))
    controlplane.api.create(f"/api/v1/namespaces/{allowed}/pods", worker)  # refused, it would raise
    assert "pod/elasticdl-job-worker-0" in objects(controlplane, allowed)


def test_every_problem_is_told_at_once_with_its_cure(controlplane, namespace, connect):
    connect(controlplane.kubeconfig)
    spec = spec_for(
        namespace,
        "--worker_pod_priority=nonsuch",
        "--volume=claim_name=nonsuch,mount_path=/data",
        "--service_account=nonsuch",
        "--worker_service_account=nobody",
    )
    with pytest.raises(ClusterError) as refused:
        submit(spec)
    words = str(refused.value)
    assert f"kubectl apply -n {namespace} -f manifests/elasticdl-rbac.yaml" in words
    assert "no PriorityClass nonsuch" in words
    assert "no PersistentVolumeClaim nonsuch" in words
    assert "no service account nonsuch" in words and "no service account nobody" in words
    assert objects(controlplane, namespace) == []


def test_a_name_that_is_taken_is_refused(controlplane, allowed):
    submit(spec_for(allowed))
    with pytest.raises(ClusterError, match="a job named job is there"):
        submit(spec_for(allowed))


def test_a_quota_that_the_smallest_ring_exceeds_is_told(controlplane, allowed):
    quota = {"metadata": {"name": "tiny"}, "spec": {"hard": {"requests.cpu": "500m"}}}
    path = f"/api/v1/namespaces/{allowed}/resourcequotas"
    controlplane.api.create(path, quota)
    eventually(lambda: controlplane.api.get(f"{path}/tiny").get("status", {}).get("hard"), "the quota counts")
    with pytest.raises(ClusterError, match=r"the quota tiny allows requests\.cpu=500m"):
        submit(spec_for(allowed))


def test_a_namespace_that_does_not_exist_is_named(controlplane, connect):
    connect(controlplane.kubeconfig)
    with pytest.raises(ClusterError, match="kubectl create namespace nowhere"):
        submit(spec_for("nowhere"))


def account(controlplane, allowed, connect, tmp_path):
    """The API with the rights of a master's service account."""
    token = controlplane.kubectl("create", "token", "elasticdl", "-n", allowed).strip()
    content = json.loads(controlplane.kubectl("config", "view", "--raw", "-o", "json"))
    content["users"] = [{"name": user["name"], "user": {"token": token}} for user in content["users"]]
    config = tmp_path / "kubeconfig"
    config.write_text(json.dumps(content))
    return connect(config)


def test_a_user_without_rights_is_told_so(controlplane, allowed, connect, tmp_path):
    account(controlplane, allowed, connect, tmp_path)
    with pytest.raises(ClusterError, match="you are not allowed to create services"):
        submit(spec_for(allowed))


@pytest.mark.parametrize(
    ("account", "verb", "kind", "answer"),
    [
        ("default", "create", "pods", False),
        ("default", "list", "pods", False),
        ("elasticdl", "create", "pods", True),
        ("elasticdl", "get", "secrets", False),
        ("elasticdl-static", "list", "pods", True),
        ("elasticdl-static", "create", "pods", False),
        ("elasticdl-static", "get", "secrets", False),
    ],
)
def test_rights_belong_to_accounts_of_their_own(controlplane, allowed, account, verb, kind, answer):
    """Every pod of the namespace has the default account, whatever runs in it."""
    review = {
        "spec": {
            "user": f"system:serviceaccount:{allowed}:{account}",
            "resourceAttributes": {"namespace": allowed, "verb": verb, "resource": kind},
        }
    }
    path = f"/apis/authorization.k8s.io/v1/namespaces/{allowed}/localsubjectaccessreviews"
    review = {"metadata": {"namespace": allowed}, **review}
    assert bool(controlplane.api.create(path, review)["status"].get("allowed")) is answer


def test_nothing_is_left_when_the_server_fails_half_way(controlplane, allowed, connect):
    with controlplane.faults() as faults:
        connect(faults.kubeconfig)
        rule = faults.answer(500, method="POST", path="/services$", times=1)
        with pytest.raises(ClusterError, match="what had been created is deleted again"):
            submit(spec_for(allowed))
        assert rule.fired == 1
    eventually(lambda: not objects(controlplane, allowed), "all is gone", 60)


def test_no_cluster_is_an_error_with_a_cure(tmp_path, monkeypatch, namespace):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(ClusterUnreachable, match=r"KUBECONFIG or ~/\.kube/config"):
        submit(spec_for("default"))
    server = {"cluster": {"server": "http://127.0.0.1:9"}, "name": "c"}
    context = {"context": {"cluster": "c", "user": "u"}, "name": "x"}
    config = {"clusters": [server], "contexts": [context], "users": [{"name": "u", "user": {}}]}
    (tmp_path / "dead").write_text(json.dumps({**config, "current-context": "x"}))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "dead"))
    with pytest.raises(ClusterUnreachable, match="no answer from the API server"):
        submit(spec_for("default"))


def test_the_manifests_can_be_written_instead_and_applied_by_hand(controlplane, allowed, tmp_path):
    file = tmp_path / "job.yaml"
    assert submit(spec_for(allowed, f"--yaml={file}")) == 0
    assert objects(controlplane, allowed) == []
    assert file.stat().st_mode & 0o077 == 0, "it holds the job's secrets"
    controlplane.kubectl("apply", "--server-side", "--validate=strict", "-f", str(file))
    assert len(objects(controlplane, allowed)) == 4
    assert names.master_name("job") in file.read_text()


def test_a_job_from_a_file_leaves_nothing_behind(controlplane, allowed, connect, tmp_path):
    """Its master becomes the owner of the rest, with the rights of its own account and no more."""
    file = tmp_path / "job.yaml"
    assert submit(spec_for(allowed, f"--yaml={file}")) == 0
    controlplane.kubectl("apply", "-f", str(file))
    master = controlplane.pod(allowed, "elasticdl-job-master")
    assert master["spec"]["containers"][0]["restartPolicyRules"], "a killed master is started again"
    owner = {"apiVersion": "v1", "kind": "Pod", "metadata": master["metadata"]}
    cluster, _ = cluster_for(account(controlplane, allowed, connect, tmp_path), spec_for(allowed), owner)

    async def scenario():
        await cluster.start()
        own = ("secret/elasticdl-job", "service/elasticdl-job-master", "networkpolicy/elasticdl-job")
        await until(lambda: all(map(owned, own)), "adopted")
        await cluster.close()

    def owned(name: str) -> str:
        path = "{.metadata.ownerReferences[*].uid}"
        return controlplane.kubectl("get", name, "-n", allowed, "-o", f"jsonpath={path}")

    asyncio.run(scenario())
    controlplane.kubectl("delete", "pod", "-n", allowed, "elasticdl-job-master", "--wait=false")
    eventually(lambda: not objects(controlplane, allowed), "deleting the master removes all", 60)


def test_what_a_job_from_a_file_left_does_not_block_the_next(controlplane, allowed, tmp_path):
    file = tmp_path / "job.yaml"
    assert submit(spec_for(allowed, f"--yaml={file}")) == 0
    controlplane.kubectl("apply", "-f", str(file))
    controlplane.kubectl(
        "delete", "pod", "-n", allowed, "elasticdl-job-master", "--grace-period=0", "--force"
    )
    left = objects(controlplane, allowed)
    assert [name.partition("/")[0].partition(".")[0] for name in left] == [
        "networkpolicy",
        "secret",
        "service",
    ]
    assert submit(spec_for(allowed)) == 0
    assert len(objects(controlplane, allowed)) == 4
    controlplane.kubectl("delete", "pod", "-n", allowed, "elasticdl-job-master", "--wait=false")
    eventually(lambda: not objects(controlplane, allowed), "now the pod owns them", 60)


def test_a_cluster_spec_in_python_adapts_pod_and_service(controlplane, allowed, tmp_path):
    file = tmp_path / "spec.py"
    file.write_text(
        "class Cluster:\n"
        "    def with_pod(self, pod):\n"
        "        pod.metadata.annotations = {'team': 'ml'}\n"
        "        return pod\n"
        "    def with_service(self, service):\n"
        "        service.metadata.annotations = {'team': 'ml'}\n"
        "        return service\n"
        "cluster = Cluster()\n"
    )
    assert submit(spec_for(allowed, f"--cluster_spec={file}")) == 0
    pod = controlplane.pod(allowed, "elasticdl-job-master")
    assert pod["metadata"]["annotations"]["team"] == "ml"
