"""Jobs on a real API server."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest

from edl_allreduce.cluster.kubernetes import names
from edl_allreduce.cluster.kubernetes.api import Api
from edl_allreduce.cluster.kubernetes.manifests import MasterContext
from edl_allreduce.cluster.kubernetes.pods import KubernetesCluster
from edl_allreduce.core.job.inbox import Ended, Note
from edl_allreduce.spec import parse_job
from kubelab import images
from kubelab.builders import full_name
from tests.kubernetes.training import IMAGE, ROOT, TrainingJob

HOLLOW = "--worker_tolerations=kubelab/hollow"


def spec_for(namespace: str, *more: str):
    argv = [
        "--job_name=job", "--image_name=example/none:1", "--model_def=a.b.c", "--training_data=/x",
        "--worker_resource_request=cpu=1,memory=64Mi", f"--namespace={namespace}", HOLLOW, *more,
    ]  # fmt: skip
    return parse_job("train", argv).spec


@pytest.fixture(scope="session")
def image() -> None:
    """In the store, so that nodes which start from now on have it. Built only where it is missing."""
    if IMAGE not in images._loaded():
        tag = IMAGE.removeprefix("docker.io/")
        assert full_name(tag) == IMAGE
        subprocess.run([sys.executable, str(ROOT / "docker/build"), "--tag", tag, "--load"], check=True)


@pytest.fixture
def job(image: None, cluster, namespace, tmp_path: Path) -> TrainingJob:
    job = TrainingJob(cluster, namespace, tmp_path / "data")
    job.prepare()
    return job


class News:
    """What a cluster says, sorted: notes for people, and ends of workers."""

    def __init__(self, cluster: KubernetesCluster) -> None:
        self._cluster = cluster
        self._notes: list[str] = []
        self._ends: deque[Ended] = deque()

    async def end(self, seconds: float = 60) -> Ended:
        """The next worker that ended."""
        while not self._ends:
            self._sort(await asyncio.wait_for(self._cluster.next_news(), seconds))
        return self._ends.popleft()

    def about(self, words: str) -> list[str]:
        self._read()
        return [text for text in self._notes if words in text]

    def no_end(self) -> bool:
        self._read()
        return not self._ends

    def _read(self) -> None:
        while not self._cluster._news.empty():
            self._sort(self._cluster._news.get_nowait())

    def _sort(self, news: Ended | Note) -> None:
        if isinstance(news, Ended):
            self._ends.append(news)
        else:
            self._notes.append(news.text)


@pytest.fixture
def connect(monkeypatch) -> Callable[..., Api]:
    def make(kubeconfig) -> Api:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        return Api.connect()

    return make


def owner_of(controlplane, namespace):
    """A config map in the place of the master's pod."""
    made = controlplane.api.create(
        f"/api/v1/namespaces/{namespace}/configmaps", {"metadata": {"name": "owner"}}
    )
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": made["metadata"]}


def cluster_for(api, spec, owner):
    cluster = KubernetesCluster(spec, api, MasterContext("10.0.0.1:50001"), owner)
    return cluster, News(cluster)


async def until(condition: Callable[[], object], what: str, timeout: float = 60.0):
    """Wait for something that a watch will tell."""
    for _ in range(int(timeout / 0.05)):
        found = condition()
        if found:
            return found
        await asyncio.sleep(0.05)
    raise AssertionError(f"{what} did not happen within {timeout:.0f} s")


def worker_pods(controlplane, namespace, job="job"):
    pods = controlplane.pods(namespace, names.selector(job, names.Replica.WORKER))
    return sorted(pod["metadata"]["name"] for pod in pods)
