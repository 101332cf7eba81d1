"""`elasticdl train`, `scale`, `status`, `jobs` and `stop` where the cluster has TrainingJobs."""

from __future__ import annotations

import json

import pytest
import yaml

from edl_allreduce.cli import main as cli
from edl_allreduce.cluster.kubernetes import finding, submit
from edl_allreduce.cluster.kubernetes.managed import ManagedJob
from edl_allreduce.errors import ApiRefused, ClusterError
from edl_allreduce.spec import parse_job
from edl_allreduce.spec.resource import from_object, path, to_object
from tests.pods.test_submitting import POD, Server

FLAGS = ["--job_name=job", "--image_name=i", "--model_def=a.b.c", "--training_data=/x"]
DISCOVERY = "/apis/elasticdl.org/v1"
RESOURCE = path("default", "job")


class Cluster(Server):
    """The same with TrainingJobs, and an account that may do anything but `forbidden`."""

    def __init__(self, *, ready: bool = True) -> None:
        super().__init__()
        self.objects["/api/v1/namespaces/default"] = {}
        self.objects["/api/v1/namespaces/default/serviceaccounts/elasticdl"] = {}
        self.forbidden: set[str] = set()
        self.patches: list[tuple[str, dict]] = []
        self.events: list[dict] = []
        if ready:
            self.objects[DISCOVERY] = {}

    def get(self, path: str, **query):
        if path in ("/apis/elasticdl.org/v1/trainingjobs", RESOURCE.rpartition("/")[0]):
            if DISCOVERY not in self.objects:
                raise ApiRefused("no such kind", status=404)
            return {"items": [o for o in self.objects.values() if o.get("kind") == "TrainingJob"]}
        if path.endswith("/events"):
            return {"items": self.events if query["fieldSelector"].endswith("elasticdl-job-master") else []}
        if path.endswith("/pods"):
            return {"items": [o for o in self.objects.values() if o.get("kind") == "Pod"]}
        return super().get(path, **query)

    def create(self, path: str, manifest: dict, **query):
        if path.endswith("reviews"):
            return {"status": {"allowed": True}}
        return super().create(path, manifest, **query)

    def patch(self, path: str, change: dict):
        self.patches.append((path, change))
        return {}

    def may(self, namespace: str, verb: str, resource: str) -> bool:
        return resource not in self.forbidden


@pytest.fixture
def cluster(monkeypatch) -> Cluster:
    return use(monkeypatch, Cluster())


def use(monkeypatch, cluster: Cluster) -> Cluster:
    for module in (submit, finding):
        monkeypatch.setattr(module.Api, "connect", lambda force_kubeconfig=False: cluster)
    return cluster


def spec_of(*more: str):
    return parse_job("train", [*FLAGS, *more]).spec


def made(cluster: Cluster) -> set[str]:
    return {each["kind"] for each in cluster.objects.values() if "kind" in each}


def running(cluster: Cluster, **status) -> None:
    """What a controller would have left."""
    cluster.objects[RESOURCE] = {
        **to_object(spec_of("--num_workers=4")),
        **({"status": status} if status else {}),
    }
    cluster.objects[RESOURCE]["metadata"]["creationTimestamp"] = "2030-01-01T12:00:00Z"


# ------------------------------------------------------------------------------------------------ submitting


def test_where_there_are_training_jobs_one_is_submitted_and_the_command_says_so(cluster, capsys):
    assert submit.submit(spec_of("--num_workers=4", "--queue_name=team", "--weight=2")) == 0
    assert made(cluster) == {"TrainingJob"}, "the controller makes the rest"
    job = from_object(cluster.objects[RESOURCE])
    assert (job.max, job.queue, job.spec.weight) == (4, "team", 2.0)
    said = capsys.readouterr().out
    assert "Submitted: TrainingJob job in namespace default." in said
    assert "kubectl get tj -n default job" in said


@pytest.mark.parametrize(
    ("flags", "ready", "why"),
    [
        (["--no_controller"], True, "as --no_controller says"),
        (["--max_workers=8"], False, "this cluster has no TrainingJobs"),
    ],
)
def test_otherwise_it_is_a_bare_master_pod_and_the_reason_is_told(monkeypatch, capsys, flags, ready, why):
    cluster = use(monkeypatch, Cluster(ready=ready))
    assert submit.submit(spec_of(*flags)) == 0
    assert made(cluster) == {"Pod", "Secret", "Service", "NetworkPolicy"}
    said = capsys.readouterr().out
    assert why in said
    assert ("Not used without one: --max_workers." in said) == ("--max_workers=8" in flags)


def test_flags_for_the_controller_do_not_reach_a_master(monkeypatch):
    cluster = use(monkeypatch, Cluster(ready=False))
    submit.submit(spec_of("--max_workers=8", "--weight=3", "--deadline=2030-01-01T00:00:00Z"))
    (container,) = cluster.objects[POD]["spec"]["containers"]
    assert container["args"] == [*FLAGS[:1], "--image_name=i", "--model_def=a.b.c", "--training_data=/x"]


def test_a_file_holds_the_same_object(cluster, capsys):
    assert submit.submit(spec_of("--yaml=-")) == 0
    text = capsys.readouterr().out
    assert yaml.safe_load(text) == to_object(spec_of())
    assert "kubectl apply -f" in text
    assert made(cluster) == set()
    assert submit.submit(spec_of("--yaml=-", "--no_controller")) == 0
    kinds = [each["kind"] for each in yaml.safe_load_all(capsys.readouterr().out)]
    assert kinds == ["Secret", "Service", "NetworkPolicy", "Pod"]


def test_a_name_that_is_taken_is_told_before_anything_is_made(cluster):
    submit.submit(spec_of())
    with pytest.raises(ClusterError, match="kubectl delete -n default tj job"):
        submit.submit(spec_of())


def test_only_the_right_to_make_training_jobs_is_needed(cluster):
    cluster.forbidden = {"pods", "secrets", "services"}
    assert submit.submit(spec_of()) == 0
    cluster.forbidden = {"elasticdl.org/trainingjobs"}
    with pytest.raises(ClusterError, match=r"not allowed to create elasticdl.org/trainingjobs"):
        submit.submit(spec_of("--job_name=other"))


# -------------------------------------------------------------------------------------- jobs that are there


def elasticdl(*words: str) -> int:
    return cli.main(list(words))


def test_a_job_is_scaled_through_its_scale_subresource(cluster, capsys):
    running(cluster, phase="Running")
    assert elasticdl("scale", "--job_name=job", "--namespace=default", "--num_workers=3") == 0
    assert cluster.patches == [(f"{RESOURCE}/scale", {"spec": {"replicas": 3}})]
    assert "3 workers, and the autoscaler leaves it alone" in capsys.readouterr().out


def test_the_size_is_given_back_to_the_autoscaler(cluster, capsys):
    running(cluster, phase="Running")
    assert elasticdl("scale", "--job_name=job", "--namespace=default", "--num_workers=auto") == 0
    assert cluster.patches == [(RESOURCE, {"spec": {"workers": {"replicas": None}}})]
    assert "as the autoscaler decides" in capsys.readouterr().out


def test_a_job_whose_master_is_gone_is_not_over(cluster):
    running(cluster, phase="Running", plan={"reason": "4 of 4"})
    (job,) = finding.known_jobs("default")
    assert isinstance(job, ManagedJob)
    assert job.running() is None and not job.over()
    assert job.absence() == "its TrainingJob is Running: 4 of 4"
    assert job.started == 1893499200.0


def test_the_list_of_a_namespace_does_not_call_it_lost(cluster, capsys):
    running(cluster, phase="Pending")
    assert elasticdl("status", "--namespace=default") == 0
    said = capsys.readouterr().out
    assert "Pending" in said and "2030-01-0" in said and "Lost" not in said


def test_one_that_nobody_looks_after_says_what_to_type(cluster, capsys):
    running(cluster)
    assert elasticdl("stop", "--job_name=job", "--namespace=default") == 1
    assert "no controller has looked at it yet" in capsys.readouterr().err


def test_what_came_of_a_job_is_told_when_its_pods_are_gone(cluster, capsys):
    failed = {"type": "Failed", "status": "True", "message": "worker 2: out of memory"}
    running(cluster, phase="Failed", conditions=[failed], trainerStatus={"step": 7, "totalSteps": 9})
    assert elasticdl("status", "--job_name=job", "--namespace=default", "--output=json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["phase"], said["reason"], said["step"]) == ("Failed", "worker 2: out of memory", 7)


def test_a_bare_job_that_went_with_its_master_says_why_and_what_to_type(cluster, capsys):
    cluster.events = [
        {"reason": "Killing", "message": "Stopping container", "lastTimestamp": "2030-01-01T00:00:02Z"},
        {"reason": "Started", "message": "Started container", "lastTimestamp": "2030-01-01T00:00:01Z"},
    ]
    assert elasticdl("status", "--job_name=job", "--namespace=default") == 2
    said = capsys.readouterr().err
    assert "Kubernetes said last: Killing: Stopping container." in said and "`elasticdl train` again" in said
    assert elasticdl("status", "--job_name=never", "--namespace=default") == 2
    assert "ended" not in capsys.readouterr().err


def test_one_that_was_deleted_is_over(cluster, monkeypatch):
    running(cluster, phase="Running")
    (job,) = finding.known_jobs("default")
    monkeypatch.setattr(job, "_read", float("-inf"))
    del cluster.objects[RESOURCE]
    assert job.over() and job.absence() == "its TrainingJob was deleted"


# ------------------------------------------------------------------------------------------- elasticdl jobs


def test_the_list_has_sizes_plans_and_reasons(cluster, capsys):
    running(
        cluster,
        phase="Running",
        workers={"ready": 3, "target": 4},
        trainerStatus={"progressPercentage": 42},
        plan={"reason": "3→4: +31 % speed, saves 9 min", "expectedEnd": "2030-01-01T08:00:00Z"},
    )
    assert elasticdl("jobs", "--cluster") == 0
    words = capsys.readouterr().out.split()
    assert {"starts", "ends", "01-01"} <= set(words)
    assert {"default", "job", "Running", "3/4", "1-4", "42", "3→4:", "+31"} <= set(words)
    assert elasticdl("jobs", "--namespace=default", "--output=json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["ready"], row["target"], row["percent"]) == (3, 4, 42)
    assert row["reason"].startswith("3→4")


def test_one_that_waits_says_when_it_will_begin(cluster, capsys):
    plan = {
        "reason": "waits for 2 CPUs",
        "expectedStart": "2030-01-01T08:00:00Z",
        "expectedEnd": "2030-01-01T09:00:00Z",
    }
    running(cluster, phase="Pending", workers={"ready": 0, "target": 0}, plan=plan)
    assert elasticdl("jobs", "--cluster", "--output=json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["ends"] - row["starts"] == 3600


def test_a_wrong_spec_is_told_in_the_list(cluster, capsys):
    refused = {"type": "Created", "status": "False", "message": "data.trainingData is missing"}
    running(cluster, phase="Pending", conditions=[refused], plan={"reason": "waits"})
    assert elasticdl("jobs", "--cluster") == 0
    assert "data.trainingData is missing" in capsys.readouterr().out


@pytest.mark.parametrize(
    "nonsense", [{"workers": "many"}, {"conditions": ["x"]}, {"plan": {"expectedEnd": 3}}]
)
def test_a_status_that_makes_no_sense_does_not_break_the_list(cluster, capsys, nonsense):
    running(cluster, **nonsense)
    assert elasticdl("jobs", "--cluster") == 0
    assert "Pending" in capsys.readouterr().out


def test_text_from_outside_cannot_draw_on_the_terminal(cluster, capsys):
    running(cluster, phase="\x1b[31mred", plan={"reason": "\x1b[2Jgone"})
    assert elasticdl("jobs", "--cluster") == 0
    assert "\x1b" not in capsys.readouterr().out


def test_a_cluster_without_training_jobs_says_how_to_get_them(monkeypatch, capsys):
    use(monkeypatch, Cluster(ready=False))
    assert elasticdl("jobs", "--cluster") == 1
    assert "kubectl apply -f manifests/crd/trainingjob.yaml" in capsys.readouterr().err
