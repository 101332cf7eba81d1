"""What is sent to the API server, as dicts."""

from __future__ import annotations

import json

import pytest

from edl_allreduce.cluster.kubernetes import manifests
from edl_allreduce.cluster.kubernetes.credentials import keep_in_secret
from edl_allreduce.cluster.kubernetes.manifests import Credentials, MasterContext
from edl_allreduce.errors import ApiRefused, SetupError, UsageError
from edl_allreduce.spec import parse_job
from tests.tutorial import GKE

CREDENTIALS = Credentials("secret-token", "-----CERTIFICATE-----", "-----KEY-----")
CONTEXT = MasterContext("elasticdl-test-mnist-master.default.svc:50001")


def spec_of(*more: str):
    return parse_job("train", [*GKE, *more]).spec


def worker(*more: str, worker_id: int = 0, slot: int = 0, context: MasterContext = CONTEXT):
    return manifests.worker_pod(spec_of(*more), worker_id, slot, context)


def variables(pod) -> dict[str, str]:
    return {v["name"]: v.get("value", v.get("valueFrom")) for v in pod["spec"]["containers"][0]["env"]}


def test_the_gke_command_line_gives_a_master_pod():
    pod, secret, service, policy = manifests.job_objects(spec_of(), CREDENTIALS)
    assert pod["metadata"]["name"] == "elasticdl-test-mnist-master"
    assert pod["metadata"]["labels"] == {
        "app": "elasticdl",
        "elasticdl-job-name": "test-mnist",
        "elasticdl-replica-type": "master",
        "elasticdl-replica-index": "0",
        "status": "Pending",
    }
    assert pod["spec"]["priorityClassName"] == "high"
    assert pod["spec"]["restartPolicy"] == "Never"
    (container,) = pod["spec"]["containers"]
    assert container["name"] == "elasticdl-test-mnist-master"
    assert container["image"] == "gcr.io/project/elasticdl:mnist"
    assert container["imagePullPolicy"] == "Always"
    assert container["command"] == ["python", "-m", "edl_allreduce.master.main"]
    two = {"cpu": "2", "memory": "2048Mi"}
    assert container["resources"] == {"requests": two, "limits": two}
    ports = [{"name": "master", "containerPort": 50001}, {"name": "page", "containerPort": 50002}]
    assert container["ports"] == ports
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "page"}
    assert "livenessProbe" not in container, (
        "a kubelet that kills a busy master would end the job (docs/seeing.md)"
    )
    name = "elasticdl-test-mnist-master-volume-0"
    assert {"name": name, "mountPath": "/data"} in container["volumeMounts"]
    claim = {"name": name, "persistentVolumeClaim": {"claimName": "fileserver-claim"}}
    assert claim in pod["spec"]["volumes"]
    assert secret["stringData"]["token"] == "secret-token"
    assert "secret-token" not in json.dumps([pod, service]), "the token is in the Secret alone"
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"]["elasticdl-replica-type"] == "master"
    own = {"podSelector": {"matchLabels": {"elasticdl-job-name": "test-mnist"}}}
    assert policy["spec"]["podSelector"] == own["podSelector"]
    assert policy["spec"]["ingress"] == [{"from": [own]}], "only the job's pods reach the job's pods"
    assert pod["spec"]["serviceAccountName"] == "elasticdl", "never the namespace's default"


def test_the_master_reads_the_same_job_from_its_arguments():
    spec = spec_of("--yaml=out.yaml", "--follow", "--cluster_spec=./spec.py")
    (container,) = manifests.master_pod(spec)["spec"]["containers"]
    parsed = parse_job("master", container["args"])
    assert parsed.spec == manifests.for_master(spec)
    assert (parsed.spec.yaml, parsed.spec.follow) == ("", False)
    assert parsed.spec.cluster_spec == "/cluster_spec/spec.py"
    assert parsed.notices == ()


def test_a_worker_pod_has_its_name_labels_and_environment():
    pod = worker(worker_id=7)
    assert pod["metadata"]["name"] == "elasticdl-test-mnist-worker-7"
    assert pod["metadata"]["labels"] == {
        "app": "elasticdl",
        "elasticdl-job-name": "test-mnist",
        "elasticdl-replica-type": "worker",
        "elasticdl-replica-index": "7",
    }
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["priorityClassName"] == "low"
    assert pod["spec"]["automountServiceAccountToken"] is False
    given = variables(pod)
    assert given["MASTER_ADDR"] == "elasticdl-test-mnist-master.default.svc:50001"
    assert (given["WORKER_ID"], given["WORKER_NUM"]) == ("7", "4")
    assert given["MY_POD_IP"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert given["EDL_JOB_TOKEN"] == {"secretKeyRef": {"name": "elasticdl-test-mnist", "key": "token"}}
    (container,) = pod["spec"]["containers"]
    assert container["command"] == ["python", "-m", "edl_allreduce.worker.main"], "it must be pid 1 itself"
    spec = parse_job("worker", container["args"]).spec
    assert (spec.worker_id, spec.master_addr) == (7, CONTEXT.master_addr)


def test_pods_pass_the_restricted_level():
    for pod in (worker(), manifests.master_pod(spec_of())):
        context = pod["spec"]["securityContext"]
        assert context["runAsNonRoot"] and context["runAsUser"] != 0
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["spec"]["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


class Secrets:
    """As much of an API server as keeps a Secret."""

    def __init__(self, refusal: ApiRefused | None = None) -> None:
        self.kept: list[dict] = []
        self._refusal = refusal

    def create(self, path, manifest, **query):
        if self._refusal is not None:
            raise self._refusal
        assert path == "/api/v1/namespaces/default/secrets"
        self.kept.append(manifest)

    def patch(self, path, change):
        assert path == "/api/v1/namespaces/default/secrets/elasticdl-test-mnist"
        self.kept.append(change)


OWNER = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "master", "uid": "7"}}


def test_a_master_without_a_secret_makes_one_and_no_pod_shows_the_token():
    api = Secrets()
    keep_in_secret(api, spec_of(), CREDENTIALS, OWNER)
    (kept,) = api.kept
    assert kept["stringData"]["token"] == "secret-token"
    assert kept["metadata"]["ownerReferences"][0]["uid"] == "7", "it goes with the master's pod"
    assert "secret-token" not in json.dumps(worker())
    taken = Secrets(ApiRefused("it is there", status=409, reason="AlreadyExists"))
    keep_in_secret(taken, spec_of(), CREDENTIALS, OWNER)
    assert taken.kept == [{"stringData": kept["stringData"]}]
    with pytest.raises(SetupError, match="elasticdl-rbac"):
        keep_in_secret(Secrets(ApiRefused("no", status=403)), spec_of(), CREDENTIALS, OWNER)


def test_a_fraction_of_the_workers_is_high():
    classes = [
        worker("--worker_pod_priority=0.5", "--num_workers=10", worker_id=i, slot=i) for i in range(10)
    ]
    high = [i for i, pod in enumerate(classes) if pod["spec"]["priorityClassName"] == "high"]
    assert high == [0, 1, 2, 8, 9]


def test_spot_nodes_are_chosen_by_selector_and_toleration():
    pod = worker(
        "--worker_node_selector=cloud.google.com/gke-spot=true",
        "--worker_tolerations=cloud.google.com/gke-spot=true:NoSchedule,old:NoExecute,any",
    )
    assert pod["spec"]["nodeSelector"] == {"cloud.google.com/gke-spot": "true"}
    assert pod["spec"]["tolerations"][:3] == [
        {"key": "cloud.google.com/gke-spot", "value": "true", "effect": "NoSchedule"},
        {"key": "old", "operator": "Exists", "effect": "NoExecute"},
        {"key": "any", "operator": "Exists"},
    ]
    assert "tolerations" not in manifests.master_pod(spec_of("--worker_tolerations=any"))["spec"]


def test_workers_run_under_the_account_that_they_are_given_without_its_token():
    pod = worker("--worker_service_account=trainer")["spec"]
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("trainer", False)
    assert "serviceAccountName" not in worker()["spec"]


def test_a_worker_on_a_lost_node_is_given_up_soon():
    lost = {t["key"]: t for t in worker()["spec"]["tolerations"]}
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        assert (lost[key]["effect"], lost[key]["tolerationSeconds"]) == ("NoExecute", 30)


def test_volumes_of_two_kinds_and_one_claim_mounted_twice():
    pod = worker(
        "--volume=claim_name=a,mount_path=/x,sub_path=s;claim_name=a,mount_path=/y;"
        "host_path=/h,mount_path=/z,type=Directory"
    )
    name = "elasticdl-test-mnist-worker-0-volume-"
    assert pod["spec"]["volumes"] == [
        {"name": f"{name}0", "persistentVolumeClaim": {"claimName": "a"}},
        {"name": f"{name}1", "hostPath": {"path": "/h", "type": "Directory"}},
    ]
    assert pod["spec"]["containers"][0]["volumeMounts"] == [
        {"name": f"{name}0", "mountPath": "/x", "subPath": "s"},
        {"name": f"{name}0", "mountPath": "/y"},
        {"name": f"{name}1", "mountPath": "/z"},
    ]


def test_a_long_name_still_gives_valid_volume_names():
    pod = worker("--job_name=" + "a" * 40, worker_id=123456)
    assert all(len(volume["name"]) <= 63 for volume in pod["spec"]["volumes"])


def test_environment_of_the_user_and_of_the_master():
    context = MasterContext(
        "m:1", environment={"AWS_REGION": "x", "AWS_KEY": "y", "OTHER": "z", "MY_POD_IP": "10.0.0.1"}
    )
    given = variables(
        worker("--envs=A=1,B=2,3,AWS_KEY=mine", "--populate_env_names=AWS_.*|MY_.*", context=context)
    )
    assert (given["A"], given["B"], given["AWS_REGION"], given["AWS_KEY"]) == ("1", "2,3", "x", "mine")
    assert "OTHER" not in given
    assert given["MY_POD_IP"] == {"fieldRef": {"fieldPath": "status.podIP"}}, "not the master's address"


def test_no_variable_is_given_twice():
    given = [
        v["name"]
        for v in worker("--envs=MY_POD_IP=1,WORKER_ID=9,EDL_JOB_TOKEN=x")["spec"]["containers"][0]["env"]
    ]
    assert sorted(set(given)) == sorted(given)
    assert variables(worker("--envs=WORKER_ID=9"))["WORKER_ID"] == "0"


def test_a_cluster_spec_adapts_the_kinds_of_pods():
    text = json.dumps(
        {
            "pod_spec": {
                "labels": {"team": "ml", "app": "mine"},
                "annotations": {"note": "all"},
                "tolerations": [{"key": "gpu", "operator": "Exists"}],
                "env": [{"name": "ALL", "value": "1"}],
            },
            "worker_pod_spec": {"affinity": {"nodeAffinity": {}}, "env": [{"name": "W", "value": "1"}]},
            "service_spec": {"labels": {"team": "ml"}},
        }
    )
    spec = spec_of(f"--cluster_spec_json={text}", "--worker_tolerations=spot")
    pod = manifests.worker_pod(spec, 0, 0, CONTEXT)
    assert pod["metadata"]["labels"]["team"] == "ml"
    assert pod["metadata"]["labels"]["app"] == "elasticdl", "labels that the master needs stay"
    keys = [t["key"] for t in pod["spec"]["tolerations"]]
    assert (keys[0], keys[-1]) == ("spot", "gpu")
    assert {"ALL", "W"} <= variables(pod).keys()
    assert pod["spec"]["affinity"] == {"nodeAffinity": {}}
    master = manifests.master_pod(spec)
    assert "affinity" not in master["spec"] and "W" not in variables(master)
    assert manifests.master_service(spec)["metadata"]["labels"]["team"] == "ml"


@pytest.mark.parametrize("text", ["{", "[]", '{"pods": {}}', '{"pod_spec": {"image": "x"}}'])
def test_a_wrong_cluster_spec_is_named(text):
    with pytest.raises(UsageError, match="--cluster_spec_json"):
        worker(f"--cluster_spec_json={text}")


def test_a_killed_master_is_restarted_where_the_cluster_can():
    pod = manifests.master_pod(spec_of(), restart_killed=True)["spec"]
    (container,) = pod["containers"]
    assert container["restartPolicy"] == "Never"
    assert container["restartPolicyRules"] == [
        {"action": "Restart", "exitCodes": {"operator": "In", "values": [137, 255]}}
    ]
    assert pod["restartPolicy"] == "OnFailure", "a rebooted kubelet does not look further"
    pod = manifests.master_pod(spec_of("--restart_policy=OnFailure"), restart_killed=True)["spec"]
    assert "restartPolicyRules" not in pod["containers"][0]
    assert manifests.master_pod(spec_of())["spec"]["restartPolicy"] == "Never", "where rules are unknown"


def test_the_grace_period_fits_the_drain():
    assert worker()["spec"]["terminationGracePeriodSeconds"] == 30
    pod = worker("--failure_detection_seconds=20.5")
    assert pod["spec"]["terminationGracePeriodSeconds"] == 62


def test_a_script_of_the_users_own_runs_in_the_workers():
    spec = parse_job("train", ["--job_name=mine", "--image_name=i", "--job_command=python my_train.py"]).spec
    pod = manifests.worker_pod(spec, 0, 0, CONTEXT)
    (container,) = pod["spec"]["containers"]
    assert container["command"] == ["python", "-m", "edl_allreduce.worker.main"], "it becomes the script"
    assert parse_job("worker", container["args"]).spec.job_command == "python my_train.py"


def test_what_is_owned_goes_with_its_owner():
    owner = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "m", "uid": "u"}}
    reference = {"apiVersion": "v1", "kind": "Pod", "name": "m", "uid": "u"}
    assert manifests.owned(worker(), owner)["metadata"]["ownerReferences"] == [reference]
