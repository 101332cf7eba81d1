"""TrainingJobs on a real API server: what kubectl shows, what is refused and in which words."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import yaml

from edl_allreduce.cluster.kubernetes import finding
from edl_allreduce.cluster.kubernetes.api import Api
from edl_allreduce.cluster.kubernetes.submit import submit
from edl_allreduce.errors import ApiRefused, ClusterError
from edl_allreduce.spec import JobSpec, parse_job
from edl_allreduce.spec.resource import from_object, path, to_object
from kubelab import eventually
from kubelab.errors import ApiError, KubelabError

pytestmark = [pytest.mark.controlplane, pytest.mark.usefixtures("training_jobs")]

MANIFESTS = Path(__file__).resolve().parents[2] / "manifests"
FLAGS = ["--job_name=job", "--image_name=i", "--model_def=a.b.c", "--training_data=/x", "--num_workers=8"]
EVERYTHING = [
    *FLAGS,
    "--max_workers=16", "--min_workers=2", "--seed=7", "--shuffle=false", "--elastic_batch=worker",
    "--worker_resource_request=cpu=500m,memory=64Mi,gpu=1", "--worker_resource_limit=cpu=1,memory=64Mi,gpu=1",
    "--worker_tolerations=a=b:NoSchedule,c", "--worker_node_selector=x/y=z", "--envs=A=1,B=a,b",
    "--volume=claim_name=data,mount_path=/data;host_path=/tmp,mount_path=/scratch,type=Directory,sub_path=a",
    "--master_resource_request=", "--weight=0.5", "--deadline=2030-12-31T08:00:00Z", "--queue_name=team",
    "--ttl_seconds_after_finished=0", "--active_deadline_seconds=3600", "--clean_pod_policy=None",
    '--cluster_spec_json={"pod_spec": {"labels": {"team": "ml"}, "affinity": {"nodeAffinity": {}}, '
    '"tolerations": [{"key": "k", "tolerationSeconds": 3}], "env": [{"name": "P", "valueFrom": '
    '{"fieldRef": {"fieldPath": "status.podIP"}}}]}, "service_spec": {"annotations": {"a": "b"}}}',
    "--failure_detection_seconds=5", "--checkpoint_steps=10", "--log_level=DEBUG",
    "--mixed_precision=mixed_bfloat16",
]  # fmt: skip


def spec_in(namespace: str, *more: str) -> JobSpec:
    return parse_job("train", [*FLAGS, f"--namespace={namespace}", *more]).spec


@pytest.fixture
def admin(controlplane, monkeypatch) -> Api:
    """This process is an administrator, and a user of `elasticdl`."""
    monkeypatch.setenv("KUBECONFIG", str(controlplane.kubeconfig))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    return Api.connect()


@pytest.fixture
def job(controlplane, namespace) -> dict:
    return controlplane.api.create(path(namespace), to_object(spec_in(namespace)))


def change(controlplane, job: dict, spec: dict) -> dict:
    where = path(job["metadata"]["namespace"], job["metadata"]["name"])
    return controlplane.api.patch(where, {"spec": spec})


def refusal(controlplane, job: dict, spec: dict) -> str:
    with pytest.raises(ApiError) as refused:
        change(controlplane, job, spec)
    return str(refused.value)


# ---------------------------------------------------------------------------------------------- what is kept


def test_a_job_that_says_everything_is_kept_and_means_the_same(controlplane, namespace, admin):
    """Strictly: the schema knows every field of ours, and fills in the defaults that flags have."""
    spec = parse_job("train", [*EVERYTHING, f"--namespace={namespace}"]).spec
    kept = admin.create(path(namespace), to_object(spec), fieldValidation="Strict")
    read = from_object(kept)
    assert read.warnings == ()
    assert to_object(read.spec) == to_object(spec)
    assert read.generation == 1 and read.uid and read.created > 1e9


def test_every_example_is_accepted_as_it_is(controlplane, namespace):
    if "namespace/paddlecloud" not in controlplane.kubectl("get", "namespaces", "--output=name").split():
        controlplane.kubectl("create", "namespace", "paddlecloud")
    for name, place in (
        ("examplejob.yaml", "paddlecloud"),
        ("trainingjob.yaml", namespace),
        ("blogjob.yaml", namespace),
    ):
        strict = ("apply", "--server-side", "--validate=strict", "-n", place)
        controlplane.kubectl(*strict, "-f", str(MANIFESTS / "examples" / name))
    kept = controlplane.api.get(path("paddlecloud", "example"))
    assert (from_object(kept).min, from_object(kept).max) == (2, 10)
    controlplane.kubectl("scale", "tj/example", "-n", "paddlecloud", "--replicas=3")
    scaled = from_object(controlplane.api.get(path("paddlecloud", "example")))
    assert (scaled.replicas, scaled.min, scaled.max) == (3, 2, 10), "the documents' spelling is scaled, too"
    with pytest.raises(KubelabError, match="must be between"):
        controlplane.kubectl("scale", "tj/example", "-n", "paddlecloud", "--replicas=11")
    controlplane.delete_namespace("paddlecloud")


# ----------------------------------------------------------------------------------------- what is refused


def without(path: str) -> dict:
    spec = copy.deepcopy(to_object(spec_in("default"))["spec"])
    at = spec
    *above, last = path.split(".")
    for key in above:
        at = at[key]
    del at[last]
    return spec


GOOD = to_object(spec_in("default"))["spec"]
WRONG = {
    "workers.min is more than workers.max": {**GOOD, "workers": {"min": 9, "max": 8}},
    "give workers.max (trainer.max-instance in older files)": without("workers"),
    "workers.replicas must be between workers.min and workers.max": {
        **GOOD, "workers": {"max": 4, "replicas": 5},
    },
    "training.batchWorkers must be between": {**GOOD, "training": {"batchWorkers": 9}},
    "a job runs jobCommand or trains model.modelDef": {**GOOD, "jobCommand": "python x.py"},
    "what to train? give model.modelDef": without("model"),
    "trainer.min-instance is more than trainer.max-instance": {
        **without("workers"), "trainer": {"min-instance": 3, "max-instance": 2},
    },
    "spec.image: Required value": without("image"),
    "should be greater than or equal to 1": {**GOOD, "workers": {"max": 0}},
    "spec.training.elasticBatch: Unsupported value": {**GOOD, "training": {"elasticBatch": "both"}},
    "spec.weight in body must be of type number": {**GOOD, "weight": "heavy"},
    "spec.deadline in body must be of type date-time": {**GOOD, "deadline": "soon"},
    "a volume is either a persistentVolumeClaim or a hostPath": {**GOOD, "volumes": [{"name": "a"}]},
    "spec.workers.resources.requests.cpu in body should match": {
        **GOOD, "workers": {"max": 4, "resources": {"requests": {"cpu": "lots"}}},
    },
}  # fmt: skip


def test_a_wrong_spec_is_refused_in_words_that_help(controlplane, namespace):
    for words, spec in WRONG.items():
        wrong = {**to_object(spec_in(namespace)), "spec": spec}
        with pytest.raises(ApiError) as refused:
            controlplane.api.create(f"{path(namespace)}?dryRun=All", wrong)
        assert words in str(refused.value)


def test_names_that_pods_cannot_carry_are_refused(controlplane, namespace):
    for name, words in (("j" * 41, "at most 40 characters"), ("a.b", "no dots")):
        wrong = {**to_object(spec_in(namespace)), "metadata": {"name": name}}
        with pytest.raises(ApiError, match=words):
            controlplane.api.create(f"{path(namespace)}?dryRun=All", wrong)


def test_what_the_model_was_trained_with_cannot_be_changed(controlplane, job):
    assert "training cannot be changed" in refusal(controlplane, job, {"training": {"minibatchSize": 1}})
    assert "model cannot be changed" in refusal(controlplane, job, {"model": {"modelParams": "a=1"}})
    assert "data cannot be changed" in refusal(controlplane, job, {"data": {"trainingData": "/y"}})
    assert "managedBy cannot be changed" in refusal(controlplane, job, {"managedBy": "x"})


def test_the_most_workers_can_be_changed_when_the_batch_stays_what_it_was(controlplane, job):
    assert "set training.batchWorkers to the present" in refusal(controlplane, job, {"workers": {"max": 16}})
    words = refusal(controlplane, job, {"workers": {"max": 16}, "training": {"batchWorkers": 16}})
    assert "training.batchWorkers cannot be changed" in words
    both = change(controlplane, job, {"workers": {"max": 16}, "training": {"batchWorkers": 8}})
    assert from_object(both).spec.global_batch_size == from_object(job).spec.global_batch_size
    assert from_object(change(controlplane, job, {"workers": {"max": 32}})).max == 32


def test_what_pods_are_made_of_changes_only_while_there_are_none(controlplane, job):
    assert "image can be changed only while suspend is true" in refusal(controlplane, job, {"image": "j"})
    nodes = {"workers": {"nodeSelector": {"flavour": "spot"}}}
    assert "workers.nodeSelector can be changed only while" in refusal(controlplane, job, nodes)
    assert "workers.min can be changed only while" in refusal(controlplane, job, {"workers": {"min": 2}})
    change(controlplane, job, {"suspend": True})
    nodes["workers"]["min"] = 2
    changed = change(controlplane, job, {"image": "j", "suspend": False, **nodes})
    assert changed["spec"]["workers"]["min"] == 2
    assert changed["spec"]["image"] == "j" and changed["spec"]["workers"]["nodeSelector"]
    for free in ({"weight": 3}, {"deadline": "2030-01-01T00:00:00Z"}, {"ttlSecondsAfterFinished": 5}):
        change(controlplane, job, free)


# -------------------------------------------------------------------------------------------- what is shown


STATUS = {
    "phase": "Running",
    "observedGeneration": 1,
    "selector": "elasticdl-job-name=job,elasticdl-replica-type=worker",
    "workers": {"ready": 3, "target": 4},
    "conditions": [
        {
            "type": "Running", "status": "True", "reason": "Trains", "message": "3 of 4 workers train",
            "lastTransitionTime": "2030-01-01T00:00:00Z", "observedGeneration": 1,
        }
    ],
    "trainerStatus": {
        "progressPercentage": 42, "estimatedRemainingSeconds": 60, "step": 42, "totalSteps": 100, "epoch": 1,
        "recordsPerSecond": 9000, "lastUpdatedTime": "2030-01-01T00:00:00Z",
        "metrics": [{"name": "loss", "value": "0.5"}],
    },
    "plan": {"reason": "3→4: +31 % speed, saves 9 min", "expectedEnd": "2030-01-01T01:00:00Z"},
    "goodput": "97.1 %",
}  # fmt: skip


def told(controlplane, job: dict) -> dict:
    """As the controller writes it."""
    where = path(job["metadata"]["namespace"], "job", "status")
    return controlplane.api.patch(where, {"status": STATUS})


def test_kubectl_shows_and_explains_it(controlplane, namespace, job):
    assert told(controlplane, job)["status"] == STATUS, "nothing is unknown to the schema"
    table = controlplane.kubectl("get", "tj", "-n", namespace)
    for word in (
        "PHASE",
        "READY",
        "TARGET",
        "MAX",
        "PROGRESS %",
        "ETA",
        "GOODPUT",
        "Running",
        "42",
        "97.1 %",
    ):
        assert word in table
    assert "saves 9 min" in controlplane.kubectl("get", "tj", "-n", namespace, "-o", "wide")
    assert "trainingjob.elasticdl.org/job" in controlplane.kubectl("get", "all", "-n", namespace)
    story = controlplane.kubectl("describe", "tj", "job", "-n", namespace)
    assert "3 of 4 workers train" in story and "Records Per Second:" in story
    controlplane.kubectl("wait", "tj/job", "-n", namespace, "--for=condition=Running", "--timeout=30s")
    explained = " ".join(controlplane.kubectl("explain", "tj.spec.training.minibatchSize").split())
    assert "Records that one worker works on at a time" in explained and "Unit: records." in explained
    assert "autoscaler means to do" in controlplane.kubectl("explain", "tj.status.plan")


def test_commands_of_elasticdl_tell_the_same(controlplane, namespace, job, admin, capsys):
    from edl_allreduce.cli.main import main

    told(controlplane, job)
    assert main(["jobs", f"--namespace={namespace}", "--output=json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["name"], row["ready"], row["target"], row["percent"]) == ("job", 3, 4, 42)
    assert main(["jobs", "--cluster"]) == 0
    assert "saves 9 min" in capsys.readouterr().out
    assert main(["scale", "--job_name=job", f"--namespace={namespace}", "--num_workers=5"]) == 0
    assert from_object(controlplane.api.get(path(namespace, "job"))).replicas == 5
    assert main(["scale", "--job_name=job", f"--namespace={namespace}", "--num_workers=99"]) == 1
    assert "workers.replicas must be between" in capsys.readouterr().err
    assert main(["scale", "--job_name=job", f"--namespace={namespace}", "--num_workers=auto"]) == 0
    assert from_object(controlplane.api.get(path(namespace, "job"))).replicas is None


def test_it_is_scaled_like_a_deployment(controlplane, namespace, job):
    told(controlplane, job)
    controlplane.kubectl("scale", "tj/job", "-n", namespace, "--replicas=2")
    scale = controlplane.api.get(path(namespace, "job", "scale"))
    assert scale["spec"] == {"replicas": 2}
    assert scale["status"] == {"replicas": 3, "selector": STATUS["selector"]}
    with pytest.raises(KubelabError, match=r"workers.replicas must be between workers.min and workers.max"):
        controlplane.kubectl("scale", "tj/job", "-n", namespace, "--replicas=9")


def test_a_horizontal_pod_autoscaler_drives_it(controlplane, namespace, job):
    """Without metrics it keeps its bounds, which is enough to see that it can read and write the size."""
    told(controlplane, job)
    controlplane.kubectl("scale", "tj/job", "-n", namespace, "--replicas=2")
    autoscaler = yaml.safe_load((MANIFESTS / "examples" / "trainingjob-hpa.yaml").read_text())
    autoscaler["spec"]["scaleTargetRef"]["name"] = "job"
    autoscaler["spec"]["minReplicas"] = 5
    controlplane.apply(autoscaler, namespace=namespace)
    eventually(
        lambda: from_object(controlplane.api.get(path(namespace, "job"))).replicas == 5,
        "the autoscaler raises the job to its least size",
        90,
    )


# ---------------------------------------------------------------------------------------------- submitting


def test_elasticdl_train_makes_a_training_job_and_nothing_else(
    controlplane, namespace, admin, capsys, tmp_path
):
    controlplane.kubectl("apply", "-n", namespace, "-f", str(MANIFESTS / "elasticdl-rbac.yaml"))
    assert submit(spec_in(namespace)) == 0
    assert "Submitted: TrainingJob job" in capsys.readouterr().out
    found = controlplane.kubectl("get", "tj,pods,secrets,services", "-n", namespace, "-o", "name")
    assert found.split() == ["trainingjob.elasticdl.org/job"]
    with pytest.raises(ClusterError, match="there is a TrainingJob job"):
        submit(spec_in(namespace))

    file = tmp_path / "job.yaml"
    assert submit(spec_in(namespace, "--job_name=other", f"--yaml={file}")) == 0
    controlplane.kubectl("apply", "--validate=strict", "-f", str(file))
    kept = [controlplane.api.get(path(namespace, name))["spec"] for name in ("job", "other")]
    assert kept[0] == kept[1]
    assert sorted(job.name for job in finding.known_jobs(namespace)) == ["job", "other"]


def test_a_size_that_no_schema_allows_is_refused_before_anything_is_made(namespace, admin, controlplane):
    controlplane.kubectl("apply", "-n", namespace, "-f", str(MANIFESTS / "elasticdl-rbac.yaml"))
    with pytest.raises(ApiRefused, match="should be less than or equal to 10000"):
        submit(spec_in(namespace, "--num_workers=20000"))
    assert finding.known_jobs(namespace) == []
