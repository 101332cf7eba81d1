"""The master's hands: pods on a real API server with hollow nodes, and with faults in between."""

from __future__ import annotations

import asyncio
import json

import pytest

from edl_allreduce.core.causes import Cause
from tests.kubernetes.conftest import cluster_for, owner_of, spec_for, until, worker_pods

pytestmark = pytest.mark.controlplane


@pytest.fixture
def nodes(controlplane):
    controlplane.add_hollow_nodes(2, cpu=64)


def test_many_pods_are_made_at_once_and_a_deleted_one_is_noticed(controlplane, namespace, connect, nodes):
    api = connect(controlplane.kubeconfig)
    cluster, news = cluster_for(
        api, spec_for(namespace, "--num_workers=30"), owner_of(controlplane, namespace)
    )

    async def scenario():
        found = await cluster.start()
        assert (found.living, found.next_id) == ((), 0)
        await asyncio.gather(*(cluster.launch(i) for i in range(30)))
        assert len(worker_pods(controlplane, namespace)) == 30
        controlplane.kubectl("delete", "pod", "-n", namespace, "elasticdl-job-worker-7", "--wait=false")
        end = await news.end()
        assert (end.worker_id, end.cause) == (7, Cause.DISRUPTED)
        await cluster.kill(3)
        end = await news.end()
        assert end.worker_id == 3
        await cluster.close()

    asyncio.run(scenario())


def test_the_next_master_finds_the_pods_and_uses_no_id_again(controlplane, namespace, connect, nodes):
    api, owner, spec = (
        connect(controlplane.kubeconfig),
        owner_of(controlplane, namespace),
        spec_for(namespace, "--worker_pod_priority="),
    )

    async def first():
        cluster, _ = cluster_for(api, spec, owner)
        await cluster.start()
        await asyncio.gather(*(cluster.launch(i) for i in range(3)))
        # It dies here: nothing is closed.

    async def second():
        cluster, _ = cluster_for(api, spec, owner)
        found = await cluster.start()
        assert (found.living, found.next_id) == ((0, 1, 2), 3)
        await cluster.launch(2)  # an answer that was lost: the pod is there already
        await cluster.launch(3)
        assert worker_pods(controlplane, namespace) == [f"elasticdl-job-worker-{i}" for i in range(4)]
        await cluster.close()
        await until(lambda: not worker_pods(controlplane, namespace), "all pods are gone")

    asyncio.run(first())
    asyncio.run(second())


def test_two_jobs_in_one_namespace_do_not_see_each_other(controlplane, namespace, connect, nodes):
    api, owner = connect(controlplane.kubeconfig), owner_of(controlplane, namespace)

    async def scenario():
        mine, my_news = cluster_for(api, spec_for(namespace), owner)
        other, others_news = cluster_for(api, spec_for(namespace, "--job_name=job-worker"), owner)
        await mine.start()
        await other.start()
        await mine.launch(0)
        await other.launch(0)
        await other.kill(0)
        end = await others_news.end()
        assert end.worker_id == 0
        assert worker_pods(controlplane, namespace) == ["elasticdl-job-worker-0"]
        assert my_news.no_end()
        await mine.close()
        await other.close()

    asyncio.run(scenario())


def test_a_quota_holds_pods_back_until_there_is_room(controlplane, namespace, connect, nodes):
    quota = {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}}
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    controlplane.api.create(path, quota)
    api, owner = connect(controlplane.kubeconfig), owner_of(controlplane, namespace)
    cluster, news = cluster_for(api, spec_for(namespace), owner)

    async def scenario():
        await until(lambda: controlplane.api.get(f"{path}/few")["status"].get("hard"), "the quota counts")
        await cluster.start()
        await cluster.launch(0)
        waiting = asyncio.create_task(cluster.launch(1))
        await until(lambda: news.about("exceeded quota"), "the quota is told")
        assert "few" in cluster.facts(1).condition
        controlplane.api.patch(f"{path}/few", {"spec": {"hard": {"pods": "2"}}})
        await asyncio.wait_for(waiting, 60)
        assert len(worker_pods(controlplane, namespace)) == 2
        await cluster.close()

    asyncio.run(scenario())


def test_a_pod_without_room_stays_pending_and_says_why(controlplane, namespace, connect, nodes):
    api, owner = connect(controlplane.kubeconfig), owner_of(controlplane, namespace)
    cluster, news = cluster_for(
        api, spec_for(namespace, "--worker_resource_request=cpu=1000,memory=64Mi"), owner
    )

    async def scenario():
        await cluster.start()
        await cluster.launch(0)
        # The scheduler may see a new node's taint a moment longer than we do, and says that first.
        await until(lambda: "Insufficient cpu" in cluster.facts(0).condition, "the scheduler says why")
        assert news.no_end()
        next_master, _ = cluster_for(api, spec_for(namespace), owner)
        found = await next_master.start()
        assert (found.living, found.running) == ((0,), ()), "what never ran holds no model"
        await cluster.terminate(0)
        end = await news.end()
        assert end.cause is Cause.DISRUPTED
        await cluster.close()

    asyncio.run(scenario())


def test_a_server_in_trouble_costs_no_pod_and_makes_none_twice(controlplane, namespace, connect, nodes):
    owner = owner_of(controlplane, namespace)
    with controlplane.faults() as faults:
        api = connect(faults.kubeconfig)
        cluster, news = cluster_for(api, spec_for(namespace), owner)
        pods = f"/namespaces/{namespace}/pods$"

        async def scenario():
            await cluster.start()
            refusals = [
                faults.answer(status, method="POST", path=pods, times=2) for status in (429, 500, 409)
            ]
            await asyncio.gather(*(cluster.launch(i) for i in range(6)))
            assert all(rule.fired == 2 for rule in refusals)
            faults.expire_watch(path=pods, times=2)
            faults.cut_watch(path=pods, after_events=1, times=2)
            controlplane.kubectl("delete", "pod", "-n", namespace, "--wait=false", "elasticdl-job-worker-1")
            controlplane.kubectl("delete", "pod", "-n", namespace, "--wait=false", "elasticdl-job-worker-4")
            ended = {(await news.end(150)).worker_id for _ in range(2)}
            assert ended == {1, 4}
            assert len(worker_pods(controlplane, namespace)) == 4
            assert news.no_end(), "nobody else is believed to be gone"
            await cluster.close()

        asyncio.run(scenario())


def test_a_pod_that_can_never_be_made_ends_the_job(controlplane, namespace, connect):
    api, owner = connect(controlplane.kubeconfig), owner_of(controlplane, namespace)
    wrong = '{"worker_pod_spec": {"tolerations": [{"key": "a", "operator": "Wrong"}]}}'
    cluster, news = cluster_for(api, spec_for(namespace, f"--cluster_spec_json={wrong}"), owner)

    async def scenario():
        await cluster.start()
        await cluster.launch(0)
        end = await news.end()
        assert end.cause is Cause.INVALID
        assert "Wrong" in end.text
        await cluster.close()

    asyncio.run(scenario())


def test_a_master_without_rights_says_how_to_get_them(controlplane, namespace, connect, tmp_path):
    """The default account of a namespace may do nothing."""
    token = controlplane.kubectl("create", "token", "default", "-n", namespace).strip()
    config = tmp_path / "kubeconfig"
    text = controlplane.kubectl("config", "view", "--raw", "-o", "json")
    content = json.loads(text)
    content["users"] = [{"name": user["name"], "user": {"token": token}} for user in content["users"]]
    config.write_text(json.dumps(content))
    owner = owner_of(controlplane, namespace)
    cluster, news = cluster_for(connect(config), spec_for(namespace), owner)

    async def scenario():
        await cluster.launch(0)
        end = await news.end()
        assert end.cause is Cause.INVALID
        assert "forbidden" in end.text
        assert f"kubectl apply -n {namespace} -f manifests/elasticdl-rbac.yaml" in end.text

    asyncio.run(scenario())
