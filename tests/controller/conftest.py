"""Controllers on an API server in memory, driven round by round in simulated time."""

from __future__ import annotations

import asyncio
import json

import pytest

from edl_allreduce.cluster.kubernetes.watching import Listed
from edl_allreduce.controller.mirror import ALL
from edl_allreduce.controller.rounds import Controller
from edl_allreduce.core.autoscale import Policy
from edl_allreduce.core.controller import mail
from edl_allreduce.core.controller.mail import Progress
from edl_allreduce.spec.resource import path
from edl_allreduce.testing.clock import FakeClock
from edl_allreduce.testing.fake_api import FakeApi

NAMESPACE = "team"


class Lab:
    """A cluster with room, controllers, and the part of everybody else."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.api = FakeApi(self.clock.wall)
        self.api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})

    def node(self, name: str, cpu: int = 8, **labels: str) -> None:
        self.api.create("/api/v1/nodes", {
            "metadata": {"name": name, "labels": labels},
            "spec": {},
            "status": {
                "allocatable": {"cpu": str(cpu), "memory": "64Gi", "pods": "110"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        })  # fmt: skip

    def job(
        self, name: str = "job", *, low: int = 1, high: int = 4, cpu: str = "1", labels=None, **spec
    ) -> str:
        """A TrainingJob of workers that ask for so much; returns its path."""
        made = self.api.create(path(NAMESPACE), {
            "metadata": {"name": name, "labels": labels or {}},
            "spec": {
                "image": "example/job:1",
                "model": {"modelDef": "a.b.c"},
                "data": {"trainingData": "/data"},
                "output": {"checkpointDir": "/ckpt"},
                "workers": {"min": low, "max": high, "resources": {"requests": {"cpu": cpu}}},
                "master": {"resources": {"requests": {"cpu": "100m"}}},
                **spec,
            },
        })  # fmt: skip
        return path(NAMESPACE, made["metadata"]["name"])

    def service(self, name: str, cpu: int, node: str = "", priority: int = 0) -> str:
        """A pod that is not ours."""
        resources = {"requests": {"cpu": str(cpu)}}
        where = f"/api/v1/namespaces/{NAMESPACE}/pods"
        spec = {"containers": [{"name": "c", "resources": resources}], "priority": priority}
        self.api.create(where, {"metadata": {"name": name}, "spec": spec})
        if node:
            self.api.run_pod(f"{where}/{name}", node)
        return f"{where}/{name}"

    def controller(self, me: str = "a", policy: Policy | None = Policy(), **more) -> Controller:  # noqa: B008
        return Controller(self.api, namespace="system", me=me, policy=policy, clock=self.clock, **more)

    async def turn(self, controller: Controller, seconds: float = 2.0, *, notes: bool = True) -> None:
        """One look at the lease, one at everything; then the notes on pods that nobody else waits for."""
        await self.clock.advance(seconds)
        await controller.election.step()
        self.refresh(controller)
        if controller.election.leads:
            await controller.round()
        if notes:
            await controller.prices.written()

    def refresh(self, controller: Controller) -> None:
        for collection in ALL:
            items = self.api.get(collection.path, **collection.chosen)["items"]
            kind = {"apiVersion": collection.api_version, "kind": collection.kind}
            controller.mirror.hear(collection, Listed([{**kind, **one} for one in items], 0.0))

    # ------------------------------------------------------------------------------ the part of others

    def master_path(self, job: str = "job") -> str:
        return f"/api/v1/namespaces/{NAMESPACE}/pods/elasticdl-{job}-master"

    def master(self, job: str = "job") -> dict | None:
        found = [one for one in self.api.all("pods") if one["metadata"]["name"] == f"elasticdl-{job}-master"]
        return found[0] if found else None

    def orders(self, job: str = "job") -> mail.Orders:
        orders = mail.orders_in(self.master(job)["metadata"]["annotations"])
        assert orders is not None
        return orders

    def status(self, job: str = "job") -> dict:
        return self.api.get(path(NAMESPACE, job)).get("status", {})

    def condition(self, kind: str, job: str = "job") -> dict:
        return next((one for one in self.status(job).get("conditions", ()) if one["type"] == kind), {})

    def works(
        self, job: str = "job", node: str = "n0", *, size: int | None = None, first: int = 0, **said
    ) -> None:
        """A master that runs and has made the workers that it was asked for, and what it tells."""
        self.api.run_pod(self.master_path(job), node)
        owner = self.master(job)["metadata"]["ownerReferences"]
        count = self.orders(job).workers if size is None else size
        resources = self.api.get(path(NAMESPACE, job))["spec"]["workers"]["resources"]
        for number in range(first, first + count):
            name = f"elasticdl-{job}-worker-{number}"
            where = f"/api/v1/namespaces/{NAMESPACE}/pods"
            labels = {
                "app": "elasticdl", "elasticdl-job-name": job, "elasticdl-replica-type": "worker",
                "elasticdl-replica-index": str(number),
            }  # fmt: skip
            if f"{where}/{name}" not in self.api._objects:
                self.api.create(where, {
                    "metadata": {"name": name, "labels": labels, "ownerReferences": owner},
                    "spec": {"containers": [{"name": "c", "resources": resources}]},
                })  # fmt: skip
            self.api.run_pod(f"{where}/{name}", node)
        self.tells(job, ring=count, wanted=count, next_id=first + count, **said)

    def tells(self, job: str = "job", **said) -> None:
        told = {"phase": "Training", "wall": self.clock.wall(), "step": 10, "total_steps": 100_000, **said}
        text = Progress(**told).text()
        self.api.patch(self.master_path(job), {"metadata": {"annotations": {mail.PROGRESS: text}}})

    def ends(self, phase: str, job: str = "job", code: int = 0, reason: str = "because") -> None:
        """The master's last word, as the kubelet keeps it."""
        words = json.dumps({"phase": phase, "reason": reason})
        self.api.end_pod(self.master_path(job), code, words)

    def worker_names(self, job: str = "job") -> list[str]:
        found = (one["metadata"]["name"] for one in self.api.all("pods"))
        return sorted(name for name in found if name.startswith(f"elasticdl-{job}-worker-"))

    def events(self) -> list[str]:
        return [f"{one['reason']}: {one['message']}" for one in self.api.all("events")]


@pytest.fixture
def lab() -> Lab:
    lab = Lab()
    lab.node("n0")
    return lab


@pytest.fixture
def play():
    """Run a story."""
    return asyncio.run
