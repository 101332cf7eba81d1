"""The proxy in front of the API server misbehaves exactly as its rules say, and counts."""

import json

import pytest

from kubelab.api import Api, pod_path
from kubelab.errors import ApiError


@pytest.fixture
def faults(controlplane):
    with controlplane.faults() as faults:
        yield faults


@pytest.fixture
def client(controlplane, faults):
    server = json.loads(faults.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    return Api(server, controlplane.run / "pki" / "ca.crt", controlplane.state.token)


def _configmap(name: str) -> dict[str, object]:
    return {"metadata": {"name": name}}


@pytest.mark.controlplane
@pytest.mark.parametrize("status", [409, 410, 429, 500])
def test_errors_are_injected_as_often_as_the_rule_says(client, faults, namespace, status):
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    rule = faults.answer(status, method="POST", path="/configmaps$", times=2, retry_after=1)
    for _ in range(2):
        with pytest.raises(ApiError) as refused:
            client.create(path, _configmap("mine"))
        assert refused.value.status == status
    client.create(path, _configmap("mine"))
    assert rule.fired == 2
    assert "mine" in {item["metadata"]["name"] for item in client.items(path)}


def _watch(client: Api, path: str, **query: str) -> list[dict[str, object]]:
    """Events until the stream ends, by itself or by force."""
    text = client.text("GET", path, query={"watch": "true", "timeoutSeconds": "2", **query})
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.controlplane
def test_a_watch_passes_and_can_be_told_that_it_is_too_old(client, faults, namespace):
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    client.create(path, _configmap("seen"))
    assert "seen" in {event["object"]["metadata"]["name"] for event in _watch(client, path)}
    rule = faults.expire_watch(path="/configmaps$", times=1)
    (event,) = _watch(client, path)
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
    assert rule.fired == 1


@pytest.mark.controlplane
def test_a_watch_is_cut_in_the_middle(client, faults, namespace):
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    for name in ("one", "two", "three"):
        client.create(path, _configmap(name))
    faults.cut_watch(path="/configmaps$", after_events=2, times=1)
    connection = client.connect()
    token = {"Authorization": f"Bearer {client.token}"}
    connection.request("GET", f"{path}?watch=true", headers=token)
    response = connection.getresponse()
    assert [json.loads(response.readline())["type"] for _ in range(2)] == ["ADDED", "ADDED"]
    assert response.readline() == b""
    connection.close()


@pytest.mark.controlplane
def test_a_stale_list_does_not_know_what_happened_since(client, faults, namespace):
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    rule = faults.stale_list(path="/configmaps$", times=2)
    before = client.items(path)
    client.create(path, _configmap("new"))
    assert client.items(path) == before
    assert rule.fired == 2
    assert "new" in {item["metadata"]["name"] for item in client.items(path)}


@pytest.mark.controlplane
def test_a_delayed_request_still_arrives(client, faults, namespace):
    rule = faults.delay(0.2, method="POST", times=1)
    client.create(f"/api/v1/namespaces/{namespace}/configmaps", _configmap("late"))
    assert rule.fired == 1


@pytest.mark.controlplane
def test_who_asks_learns_whether_the_proxy_answers(controlplane, faults):
    ports = {"proxy": faults.listen(lambda call: call(), "127.0.0.1"), "server": controlplane.state.api_port}
    reached = {
        name for name, port in ports.items() if faults.is_reached(lambda call: call(), "127.0.0.1", port)
    }
    assert reached == {"proxy"}
    assert not faults.requests, "it is no request of the test"


@pytest.mark.cluster
def test_pods_reach_the_api_server_through_the_proxy(cluster, namespace, start_pod):
    with cluster.faults() as faults:
        rule = faults.answer(200, path="^/only-the-proxy-knows-this$")
        command = "probe get https://kubernetes.default.svc/only-the-proxy-knows-this"
        start_pod("asks", command, phase="Succeeded")
        assert rule.fired >= 1
    start_pod("asks-again", "probe get https://kubernetes.default.svc/healthz", phase="Succeeded")
    assert cluster.logs(namespace, "asks-again").endswith("ok")


@pytest.mark.cluster
def test_exec_passes_through_the_proxy(cluster, namespace, start_pod):
    start_pod("target", "exec sleep 1000")
    with cluster.faults() as faults:
        arguments = ("exec", "-n", namespace, "target", "--", "hostname")
        assert cluster.kubectl(f"--kubeconfig={faults.kubeconfig}", *arguments).strip() == "target"
        assert any(request.path == f"{pod_path(namespace, 'target')}/exec" for request in faults.requests)
