"""Submitted jobs and jobs from --yaml leave nothing behind that is in the way of the next one."""

from __future__ import annotations

import asyncio
import itertools
import threading

import pytest
import yaml

from edl_allreduce.cluster.kubernetes import manifests, names, pods, submit
from edl_allreduce.cluster.kubernetes.manifests import MasterContext
from edl_allreduce.cluster.kubernetes.pods import KubernetesCluster
from edl_allreduce.core.job.inbox import Note
from edl_allreduce.errors import ApiRefused, ClusterError, ClusterUnreachable
from edl_allreduce.spec import parse_job

SECRET = "/api/v1/namespaces/default/secrets/elasticdl-job"
SERVICE = "/api/v1/namespaces/default/services/elasticdl-job-master"
POLICY = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies/elasticdl-job"
POD = "/api/v1/namespaces/default/pods/elasticdl-job-master"


class Server:
    """An API server's objects by their paths; what it does on the way can be scripted."""

    def __init__(self) -> None:
        self.objects: dict[str, dict] = {}
        self.refusals: dict[tuple[str, str], list[ApiRefused]] = {}
        """Answers to a verb on a path, before the real one."""
        self.lingering: dict[str, int] = {}
        """How many more requests an object outlives that was deleted."""
        self.minor = "35"
        self._uids = itertools.count(1)
        self._silence = threading.Event()

    def get(self, path: str, **query):
        if path == "/version":
            return {"major": "1", "minor": self.minor}
        if path.endswith("/pods"):
            return {"items": [], "metadata": {"resourceVersion": "1"}}
        self._script("get", path)
        return self._found(path)

    def lines(self, path: str, timeout: float, **query):
        self._silence.wait(0.05)  # a watch in which nothing happens
        return iter(())

    def create(self, path: str, manifest: dict, **query):
        whole = f"{path}/{manifest['metadata']['name']}"
        self._script("create", whole)
        if whole in self.objects:
            if self.lingering.get(whole) == 0:
                del self.objects[whole]
            else:
                raise ApiRefused("it is there", status=409, reason="AlreadyExists")
        metadata = {**manifest["metadata"], "uid": f"uid-{next(self._uids)}"}
        self.objects[whole] = {**manifest, "metadata": metadata}
        return self.objects[whole]

    def patch(self, path: str, change: dict):
        self._script("patch", path)
        found = self._found(path)
        found["metadata"] = {**found["metadata"], **change["metadata"]}
        return found

    def delete(self, path: str, grace: int | None = None, uid: str = "") -> bool:
        self._script("delete", path)
        if path not in self.objects or self.objects[path]["metadata"]["uid"] != uid:
            return False
        if self.lingering.get(path, 0) > 0:
            self.lingering[path] -= 1
        else:
            del self.objects[path]
        return True

    def _found(self, path: str):
        if path not in self.objects:
            raise ApiRefused("nothing there", status=404)
        return self.objects[path]

    def _script(self, verb: str, path: str) -> None:
        answers = self.refusals.get((verb, path))
        if answers:
            raise answers.pop(0)

    def owner(self, path: str) -> str:
        references = self.objects[path]["metadata"].get("ownerReferences") or [{"uid": ""}]
        return references[0]["uid"]

    def kubectl_apply(self, text: str) -> None:
        for manifest in yaml.safe_load_all(text):
            kind = submit.COLLECTIONS[manifest["kind"]]
            self.create(names.path(kind, "default"), manifest)


def spec_of(*more: str):
    flags = ["--job_name=job", "--image_name=i", "--model_def=a.b.c", "--training_data=/x", *more]
    return parse_job("train", flags).spec


def send(server: Server) -> None:
    submit.send(server, spec_of(), submit.plan(spec_of(), restart_killed=True))


def written(monkeypatch, capsys, server: Server | None) -> str:
    def connect(force_kubeconfig: bool = False):
        if server is None:
            raise ClusterUnreachable("no cluster is configured")
        return server

    monkeypatch.setattr(submit.Api, "connect", connect)
    assert submit.submit(spec_of("--yaml=-")) == 0
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(submit, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(pods, "FIRST_DELAY", 0.001)


# ------------------------------------------------------------------------------------------------ submit


def test_the_masters_pod_owns_what_is_submitted_with_it():
    server = Server()
    send(server)
    assert set(server.objects) == {POD, SECRET, SERVICE, POLICY}
    uid = server.objects[POD]["metadata"]["uid"]
    assert server.owner(SECRET) == server.owner(SERVICE) == server.owner(POLICY) == uid
    assert names.ADOPTS not in server.objects[POD]["metadata"].get("annotations", {})


def test_who_may_not_make_a_network_policy_is_told_and_gets_a_job(caplog):
    server = Server()
    server.refusals["create", POLICY] = [ApiRefused("networkpolicies is forbidden", status=403)]
    send(server)
    assert set(server.objects) == {POD, SECRET, SERVICE}
    assert "without a NetworkPolicy" in caplog.text


def test_what_a_job_from_a_file_left_is_replaced(monkeypatch, capsys):
    server = Server()
    server.kubectl_apply(written(monkeypatch, capsys, server))
    before = server.objects[SECRET]["stringData"]["token"]
    del server.objects[POD]  # kubectl delete pod: nothing owned the other two
    send(server)
    assert server.objects[SECRET]["stringData"]["token"] != before
    assert server.owner(SECRET) == server.owner(SERVICE) == server.objects[POD]["metadata"]["uid"]


def test_what_is_just_being_deleted_is_waited_for():
    server = Server()
    send(server)
    del server.objects[POD]
    server.lingering[SECRET] = 3
    send(server)
    assert server.owner(SECRET) == server.objects[POD]["metadata"]["uid"]


def test_what_does_not_go_away_ends_the_submission_and_is_named(monkeypatch):
    monkeypatch.setattr(submit, "GONE_SECONDS", 0.01)
    server = Server()
    send(server)
    del server.objects[POD]
    server.lingering[SERVICE] = 10**6
    with pytest.raises(ClusterError, match="services elasticdl-job-master of an earlier job job does not go"):
        send(server)
    assert POD not in server.objects, "all or nothing"


def test_somebody_elses_secret_of_that_name_is_not_touched():
    server = Server()
    server.create(SECRET.rpartition("/")[0], {"metadata": {"name": "elasticdl-job"}, "data": {"a": "b"}})
    with pytest.raises(ClusterError, match="does not belong to a job; choose another --job_name"):
        send(server)
    assert set(server.objects) == {SECRET}
    assert server.objects[SECRET]["data"] == {"a": "b"}


# ------------------------------------------------------------------------------------------------ --yaml


@pytest.mark.parametrize("minor", ["35", "36+", None])
def test_a_master_from_a_file_is_started_again_like_a_submitted_one(monkeypatch, capsys, minor):
    server = Server()
    server.minor = minor or ""
    text = written(monkeypatch, capsys, server if minor else None)
    assert "# For Kubernetes 1.35 or newer" in text
    *_, pod = yaml.safe_load_all(text)
    submitted = manifests.master_pod(spec_of(), restart_killed=True)
    (given,), (same,) = pod["spec"].pop("containers"), submitted["spec"].pop("containers")
    assert given["restartPolicyRules"] == same["restartPolicyRules"]
    assert pod["spec"] == submitted["spec"]


def test_an_older_cluster_gets_no_rules_and_the_file_says_so(monkeypatch, capsys):
    server = Server()
    server.minor = "34"
    text = written(monkeypatch, capsys, server)
    assert "# A master that is killed is not started again" in text and "restartPolicyRules" not in text


def test_a_file_that_others_could_read_is_replaced_by_one_that_they_cannot(monkeypatch, tmp_path):
    monkeypatch.setattr(submit.Api, "connect", lambda force_kubeconfig=False: Server())
    file = tmp_path / "job.yaml"
    file.write_text("of an earlier job")
    file.chmod(0o644)
    assert submit.submit(spec_of(f"--yaml={file}")) == 0
    assert file.stat().st_mode & 0o077 == 0, "it holds the job's secrets"
    assert len(list(yaml.safe_load_all(file.read_text()))) == 4


def test_the_pod_comes_last_so_that_all_is_there_when_it_starts(monkeypatch, capsys):
    kinds = [each["kind"] for each in yaml.safe_load_all(written(monkeypatch, capsys, Server()))]
    assert kinds == ["Secret", "Service", "NetworkPolicy", "Pod"]


# ---------------------------------------------------------------------------------------------- adoption


def master_of(server: Server) -> KubernetesCluster:
    """What the master starts in its pod."""
    owner = {"apiVersion": "v1", "kind": "Pod", "metadata": server.objects[POD]["metadata"]}
    return KubernetesCluster(spec_of(), server, MasterContext("10.0.0.1:50001"), owner)


def start(server: Server, until) -> list[str]:
    """Let the master start and wait for something; gives what it told people."""

    async def scenario() -> list[str]:
        cluster = master_of(server)
        await cluster.start()
        for _ in range(2000):
            if until(cluster):
                break
            await asyncio.sleep(0.001)
        else:
            raise AssertionError("it did not happen")
        told = []
        while not cluster._news.empty():
            news = cluster._news.get_nowait()
            assert isinstance(news, Note)
            told.append(f"{news.kind}: {news.text}")
        await cluster.close()
        return told

    return asyncio.run(scenario())


def test_a_master_from_a_file_becomes_the_owner_of_secret_and_service(monkeypatch, capsys):
    server = Server()
    server.kubectl_apply(written(monkeypatch, capsys, server))
    uid = server.objects[POD]["metadata"]["uid"]
    assert start(server, lambda _: server.owner(SECRET) == server.owner(SERVICE) == uid) == []


def test_an_api_server_in_trouble_is_asked_again(monkeypatch, capsys):
    server = Server()
    server.kubectl_apply(written(monkeypatch, capsys, server))
    server.refusals["patch", SECRET] = [ApiRefused("later", status=503), ApiRefused("not yet", status=404)]
    uid = server.objects[POD]["metadata"]["uid"]
    assert start(server, lambda _: server.owner(SECRET) == server.owner(SERVICE) == uid) == []


def test_a_master_that_may_not_adopt_says_so_and_serves(monkeypatch, capsys):
    server = Server()
    server.kubectl_apply(written(monkeypatch, capsys, server))
    server.refusals["patch", SECRET] = [ApiRefused("secrets is forbidden", status=403)]
    (told,) = start(server, lambda _: server.owner(SERVICE))
    assert told.startswith("notice: secrets elasticdl-job will stay when the master's pod is deleted")
    assert "--service_account=elasticdl" in told and "forbidden" in told


def test_the_master_of_a_submitted_job_asks_for_nothing():
    server = Server()
    send(server)
    server.refusals["patch", SECRET] = [ApiRefused("not allowed", status=403)]
    assert start(server, lambda cluster: not cluster._effects) == []
    assert server.refusals["patch", SECRET], "nobody tried"
