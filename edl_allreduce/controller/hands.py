"""Every write of the controller. Each is checked against the lease before it is sent, and names what it
was decided on: the version of what it changes, the uid of what it deletes, or a name that only one can have.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol, TypeVar

from edl_allreduce import clock, outside
from edl_allreduce.cluster.kubernetes import manifests, names
from edl_allreduce.cluster.kubernetes.credentials import make_credentials
from edl_allreduce.cluster.kubernetes.names import Object
from edl_allreduce.controller.election import Election
from edl_allreduce.controller.jobs import Entry
from edl_allreduce.controller.mirror import PODS, SERVICES, Mirror
from edl_allreduce.controller.objects import master_pod_of
from edl_allreduce.core.controller import mail, price, reading
from edl_allreduce.core.controller.facts import (
    Action,
    DeleteEnded,
    DeleteJob,
    DeleteMaster,
    DeleteWorkers,
    MakeMaster,
    MakeService,
    Post,
)
from edl_allreduce.core.controller.mail import Progress
from edl_allreduce.core.controller.status import stamp
from edl_allreduce.core.controller.survey import ENDED
from edl_allreduce.errors import ApiRefused, ClusterError
from edl_allreduce.spec import JobSpec
from edl_allreduce.spec.resource import TrainingJob, path

log = logging.getLogger(__name__)

PARALLEL = 8
"""Requests at the same time."""
NOTES = 4
"""Notes on pods at the same time, in threads of their own: one that hangs holds no order up."""
CONFLICT = 409
FORBIDDEN = 403
NO_RIGHT = re.compile(r"\bcannot \w+ resource\b")
NO_ACCOUNT = re.compile(r"error looking up service account (?P<namespace>[^/\s]+)/(?P<name>[^:\s]+)")
"""What the API server says in a 403 that comes from RBAC, and in one for an account that is not there."""
LONGEST_NOTE = 1000
"""Characters of an Event's message; Kubernetes takes 1,024."""
T = TypeVar("T")


class WritingApi(Protocol):
    """The part of the API that is needed here."""

    def create(self, path: str, manifest: Object, **query: str | int) -> Object: ...

    def patch(self, path: str, change: Object) -> Object: ...

    def replace(self, path: str, whole: Object) -> Object: ...

    def delete(self, path: str, grace: int | None = None, uid: str = "") -> bool: ...


class Hands:
    """Carries out what was decided, in the term in which it was."""

    def __init__(
        self, api: WritingApi, election: Election, mirror: Mirror, *, restart_killed: bool = False
    ) -> None:
        self._api, self._election, self._mirror = api, election, mirror
        self._restart_killed = restart_killed
        self._threads = ThreadPoolExecutor(PARALLEL, thread_name_prefix="write")
        self._notes = ThreadPoolExecutor(NOTES, thread_name_prefix="note")
        self.writes = 0
        self.conflicts = 0

    def close(self) -> None:
        for threads in (self._threads, self._notes):
            threads.shutdown(wait=False, cancel_futures=True)

    async def perform(self, action: Action, entry: Entry, job: TrainingJob, term: int) -> None:
        match action:
            case MakeMaster():
                await self._make_master(action, entry, job, term)
            case MakeService():
                await self._make(manifests.master_service(job.spec), entry, "services", term)
            case Post(orders):
                await self._post(orders.annotations(), job, term)
            case DeleteMaster(uid, force):
                name = names.master_name(job.name)
                await self._delete("pods", job, name, uid, term, grace=0 if force else None)
            case DeleteWorkers(pods):
                for name in pods:
                    await self._delete_pod(job, name, term)
            case DeleteEnded():
                for pod in [one for one in self._mirror.of(PODS) if reading.owned_by(one, job.uid)]:
                    if (pod.get("status") or {}).get("phase") in ENDED:
                        await self._delete_pod(job, pod["metadata"]["name"], term)
            case DeleteJob():
                await self._write(
                    partial(self._api.delete, path(job.namespace, job.name), None, job.uid), term
                )

    async def write_status(self, entry: Entry, status: Object, term: int) -> bool:
        """Over the version that it was decided on; False when there is a newer one, to be looked at."""
        metadata = entry.found["metadata"]
        where = path(metadata["namespace"], metadata["name"], "status")
        try:
            whole = {**entry.found, "status": status}
            self._mirror.put(await self._write(partial(self._api.replace, where, whole), term))
        except ApiRefused as error:
            if error.status not in (CONFLICT, 404):
                raise
            self.conflicts += error.status == CONFLICT
            return False
        return True

    async def mark_price(self, pod: Object, cost: int, term: int) -> None:
        """On a worker pod: what its loss costs."""
        await self._annotate(pod, {price.ANNOTATION: str(cost)}, term, self._notes)

    async def tell(self, entry: Entry, kind: str, reason: str, note: str, term: int) -> None:
        """An Event of the TrainingJob: `kubectl describe` shows it. Nobody waits for it."""
        found = entry.found
        metadata = found["metadata"]
        now = stamp(clock.wall())
        reference = {
            "apiVersion": found["apiVersion"], "kind": found["kind"], "name": metadata["name"],
            "namespace": metadata["namespace"], "uid": metadata["uid"],
        }  # fmt: skip
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{metadata['name']}.", "namespace": metadata["namespace"]},
            "involvedObject": reference,
            "reason": reason,
            "message": note[:LONGEST_NOTE],
            "type": kind,
            "source": {"component": "elasticdl-controller"},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            where = names.path("events", metadata["namespace"])
            await self._write(partial(self._api.create, where, event), term)
        except ClusterError as error:
            log.debug("the event of %s could not be written: %s", entry.key, error)

    # ---------------------------------------------------------------------------------------------- making

    async def _make_master(self, action: MakeMaster, entry: Entry, job: TrainingJob, term: int) -> None:
        """The pod last, because it needs the others. The Secret's name is this TrainingJob's alone, so one
        that is there already is its own, and need not be read."""
        credentials = await asyncio.to_thread(make_credentials)
        await self._make(manifests.secret(job.spec, credentials, job.uid), entry, "secrets", term)
        if self._mirror.get(SERVICES, f"{job.namespace}/{names.master_name(job.name)}") is None:
            await self._make(manifests.master_service(job.spec), entry, "services", term)
        for manifest, collection, without in (
            (manifests.network_policy(job.spec, job.uid), "networkpolicies", "open to other pods"),
            (
                manifests.disruption_budget(job.spec, job.uid),
                "poddisruptionbudgets",
                "a drain may take all of its pods at once",
            ),
        ):
            await self._make_if_allowed(manifest, entry, collection, without, term)
        annotations = {**action.orders.annotations(), mail.CRASHES: str(action.crashes)}
        if action.progress is not None and action.progress != Progress():
            annotations[mail.PROGRESS] = action.progress.text()
        pod = master_pod_of(job.spec, entry.found, annotations, restart_killed=self._restart_killed)
        await self._make(pod, entry, "pods", term)

    async def _make_if_allowed(
        self, manifest: Object, entry: Entry, collection: str, without: str, term: int
    ) -> None:
        """What a job can do without, where the controller's rights are older than this controller."""
        try:
            await self._make(manifest, entry, collection, term)
        except ApiRefused as error:
            if error.status != FORBIDDEN:
                raise
            why = outside.line(rule_for(error), 1000)
            log.warning("%s goes on without a %s, %s: %s", entry.key, manifest["kind"], without, why)

    async def _make(self, manifest: Object, entry: Entry, collection: str, term: int) -> None:
        namespace = entry.found["metadata"]["namespace"]
        owned = manifests.owned(manifest, entry.found)
        try:
            request = partial(self._api.create, names.path(collection, namespace), owned)
            made = await self._write(request, term)
        except ApiRefused as error:
            if error.status != CONFLICT:
                raise
            return  # it is there; the watch will tell whose it is
        if collection in ("pods", "services"):
            self._mirror.put({**made, "apiVersion": "v1", "kind": manifest["kind"]})

    async def _post(self, annotations: dict[str, str], job: TrainingJob, term: int) -> None:
        pod = self._mirror.get(PODS, f"{job.namespace}/{names.master_name(job.name)}")
        if pod is not None:
            await self._annotate(pod, annotations, term)

    async def _annotate(
        self, pod: Object, annotations: dict[str, str], term: int, threads: ThreadPoolExecutor | None = None
    ) -> None:
        """Only the very version that was looked at."""
        metadata = pod["metadata"]
        change = {
            "metadata": {
                "uid": metadata["uid"],
                "resourceVersion": metadata["resourceVersion"],
                "annotations": annotations,
            }
        }
        where = names.path("pods", metadata["namespace"], metadata["name"])
        request = partial(self._api.patch, where, change)
        try:
            made = await self._write(request, term, threads)
            self._mirror.put({**made, "apiVersion": "v1", "kind": "Pod"})
        except ApiRefused as error:
            if error.status not in (CONFLICT, 404):
                raise
            self.conflicts += 1  # it changed meanwhile, or another controller leads

    # -------------------------------------------------------------------------------------------- deleting

    async def _delete_pod(self, job: TrainingJob, name: str, term: int) -> None:
        pod = self._mirror.get(PODS, f"{job.namespace}/{name}")
        if pod is not None and not pod["metadata"].get("deletionTimestamp"):
            await self._delete("pods", job, name, pod["metadata"]["uid"], term)

    async def _delete(
        self, kind: str, job: TrainingJob, name: str, uid: str, term: int, grace: int | None = None
    ) -> None:
        request = partial(self._api.delete, names.path(kind, job.namespace, name), grace, uid)
        await self._write(request, term)

    async def _write(
        self, request: Callable[[], T], term: int, threads: ThreadPoolExecutor | None = None
    ) -> T:
        def send() -> T:
            self._election.check(term)  # as late as possible
            return request()

        self.writes += 1
        return await asyncio.get_running_loop().run_in_executor(threads or self._threads, send)


def rule_for(error: ClusterError) -> str:
    """What is missing, for whoever can give it. Quotas and policies speak for themselves."""
    if not isinstance(error, ApiRefused) or error.status != FORBIDDEN:
        return str(error)
    account = NO_ACCOUNT.search(str(error))
    if account is not None and account["name"] == JobSpec.service_account:
        apply = f"kubectl apply -n {account['namespace']} -f manifests/elasticdl-rbac.yaml"
        return f"its master has no account: {error}. `{apply}` makes it."
    if NO_RIGHT.search(str(error)):
        return f"the controller lacks a right: {error} `kubectl apply -k manifests/controller` gives it."
    return str(error)
