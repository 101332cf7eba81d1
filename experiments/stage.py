"""A namespace of the cluster as it changes: starts the players of its pods, and counts for the collector."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from edl_allreduce import clock
from edl_allreduce.cluster.kubernetes import names
from edl_allreduce.cluster.kubernetes.api import Api
from edl_allreduce.cluster.kubernetes.names import Object
from edl_allreduce.cluster.kubernetes.watching import Changed, Listed, Removed, Seen, Watcher
from edl_allreduce.core.controller.survey import CPU, requests_of
from edl_allreduce.spec.resource import from_object, path
from experiments.players import Play, PlayedMaster


@dataclass
class Counted:
    """One pod."""

    job: str
    """Empty for those of the service."""
    worker: bool
    cpu: float
    phase: str = "Pending"


@dataclass
class Submitted:
    """One job, as a collector from outside sees it."""

    at: float
    first_worker: float | None = None
    """When the first of its workers ran."""
    object: Object = field(default_factory=dict)


class Stage:
    """All pods of one namespace, and their players."""

    def __init__(self, api: Api, namespace: str, play: Play) -> None:
        self._api, self.namespace, self._play = api, namespace, play
        self.jobs: dict[str, Submitted] = {}
        self.pods: dict[str, Counted] = {}
        self.masters: dict[str, PlayedMaster] = {}
        self._threads = ThreadPoolExecutor(8, thread_name_prefix="play")
        self._watcher: Watcher | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()

        def deliver(seen: Seen) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._hear, seen)

        self._watcher = Watcher(self._api, names.path("pods", self.namespace), {}, deliver)
        threading.Thread(target=self._watcher.run, name="stage", daemon=True).start()

    def close(self) -> None:
        for master in self.masters.values():
            master.close()
        if self._watcher is not None:
            self._watcher.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def submit(self, name: str, manifest: Object) -> None:
        self.jobs[name] = Submitted(clock.now())
        made = await asyncio.to_thread(self._api.create, path(self.namespace), manifest)
        self.jobs[name].object = made

    @property
    def lost_masters(self) -> list[str]:
        return [f"{job}: {one.lost}" for job, one in self.masters.items() if one.lost]

    # ------------------------------------------------------------------------------------------ counting

    def running(self, job: str | None = None) -> int:
        """Workers that run, of one job or of all."""
        return sum(
            one.worker and one.phase == "Running" and job in (None, one.job) for one in self.pods.values()
        )

    def service(self) -> int:
        return sum(not one.job and one.phase == "Running" for one in self.pods.values())

    def cpus(self, job: str | None = None) -> float:
        """That running pods ask for: all of them, or those of one job."""
        return sum(one.cpu for one in self.pods.values() if one.phase == "Running" and job in (None, one.job))

    # ------------------------------------------------------------------------------------------- hearing

    def _hear(self, seen: Seen) -> None:
        match seen:
            case Listed(objects):
                for pod in objects:
                    self._look(pod)
            case Changed(pod):
                self._look(pod)
            case Removed(pod):
                self._gone(pod)

    def _look(self, pod: Object) -> None:
        uid, phase = pod["metadata"]["uid"], (pod.get("status") or {}).get("phase", "Pending")
        labels = pod["metadata"].get("labels") or {}
        job, worker_id = labels.get(names.JOB_LABEL, ""), names.worker_id_of(pod)
        if uid not in self.pods:
            asked = requests_of(pod["spec"]).get(CPU, 0)
            self.pods[uid] = Counted(job, worker_id is not None, asked / 1000)
        self.pods[uid].phase = phase
        if phase != "Running" or not job:
            return
        if worker_id is None:
            self._master_runs(job, pod)
            return
        submitted = self.jobs.get(job)
        if submitted is not None and submitted.first_worker is None:
            submitted.first_worker = clock.now()
        if job in self.masters:
            self.masters[job].runs(worker_id, pod)

    def _master_runs(self, job: str, pod: Object) -> None:
        if job not in self.masters and job in self.jobs:
            spec = from_object(self.jobs[job].object).spec
            self.masters[job] = PlayedMaster(pod, spec, self._play, self._threads)

    def _gone(self, pod: Object) -> None:
        self.pods.pop(pod["metadata"]["uid"], None)
        job, worker_id = (
            (pod["metadata"].get("labels") or {}).get(names.JOB_LABEL, ""),
            names.worker_id_of(pod),
        )
        if job in self.masters and worker_id is not None:
            worker = self.masters[job].workers.get(worker_id)
            if worker is not None:
                self.masters[job].ring.without(worker)
                worker.die()
