"""Workers as pods. One asyncio loop owns all state; the blocking client works in threads."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, TypeVar

from edl_allreduce import clock
from edl_allreduce.cluster.base import DryRun, Found, News
from edl_allreduce.cluster.kubernetes import names
from edl_allreduce.cluster.kubernetes.cluster_spec_file import adapted_by_file
from edl_allreduce.cluster.kubernetes.manifests import MasterContext, owned, reference, worker_pod
from edl_allreduce.cluster.kubernetes.names import Object, Replica
from edl_allreduce.cluster.kubernetes.watching import Changed, Listed, Lister, Removed, Seen, Watcher
from edl_allreduce.core import pod_causes
from edl_allreduce.core.causes import Cause
from edl_allreduce.core.deadlines import growing
from edl_allreduce.core.job.inbox import Ended, Note
from edl_allreduce.core.pod_causes import Coming, Leaving, Over, Running
from edl_allreduce.core.protocol import NoteKind
from edl_allreduce.core.status import WorkerFacts
from edl_allreduce.errors import ApiRefused, ClusterError
from edl_allreduce.spec import JobSpec

log = logging.getLogger(__name__)

PARALLEL = 8
"""Requests at the same time, and …"""
PER_SECOND = 40.0
"""… how many are begun per second: a job of a thousand workers must not take the API server for itself."""
FIRST_DELAY = 0.5
LONGEST_DELAY = 15.0
"""Between two tries of one request, doubled each time: an API server that restarts is soon back."""
BROKEN_SECONDS = 60.0
"""How long an image may be missing before a job of which no worker ever ran is given up."""
OVERDUE_SECONDS = 15.0
"""How long after its time a leaving pod is waited for: then its node is gone. Clocks differ."""
TAIL_LINES = 40
FORBIDDEN = 403

STAYS = (
    "{kind} {name} will stay when the master's pod is deleted: `kubectl delete -f` removes all of a job that "
    "was applied from a file, and with --service_account=elasticdl the master may do it."
)
RBAC_CURE = "kubectl apply -n {namespace} -f manifests/elasticdl-rbac.yaml"

T = TypeVar("T")


class PodApi(Lister, Protocol):
    """The part of the API that is needed here."""

    def create(self, path: str, manifest: Object, **query: str | int) -> Object: ...

    def delete(self, path: str, grace: int | None = None, uid: str = "") -> bool: ...

    def patch(self, path: str, change: Object) -> Object: ...

    def text(self, path: str, **query: str | int) -> str: ...

    def may(self, namespace: str, verb: str, resource: str) -> bool: ...


class Pace:
    """Lets so many in at a time, and so many per second."""

    def __init__(self, parallel: int, per_second: float) -> None:
        self._room = asyncio.Semaphore(parallel)
        self._interval = 1 / per_second
        self._next = 0.0

    async def __aenter__(self) -> None:
        await self._room.acquire()
        now = clock.now()
        start, self._next = max(now, self._next), max(now, self._next) + self._interval
        if start > now:
            await asyncio.sleep(start - now)

    async def __aexit__(self, *_: object) -> None:
        self._room.release()


class KubernetesCluster:
    """The worker pods of one job."""

    head_start = 0.0

    def __init__(
        self,
        spec: JobSpec,
        api: PodApi,
        context: MasterContext,
        owner: Object,
        on_launch: Callable[[int], None] = lambda worker_id: None,
    ) -> None:
        """`on_launch` is called before a pod is made, so that its id is never used again."""
        self._spec = spec
        self._api = api
        self._office = context
        self._owner = owner
        self._on_launch = on_launch
        self._pods: dict[int, Object] = {}
        """As last seen; also those that are over."""
        self._since: dict[int, float] = {}
        """When this master learnt that the pod exists: a list that was asked for earlier may miss it."""
        self._slots: dict[int, int] = {}
        self._over: set[int] = set()
        self._unwanted: set[int] = set()
        """Asked to end before the pod was made."""
        self._conditions: dict[int, str] = {}
        self._any_ran = False
        self._news: asyncio.Queue[News] = asyncio.Queue()
        self._listed = asyncio.Event()
        self._closed = False
        self._watcher: Watcher | None = None
        self._threads = ThreadPoolExecutor(PARALLEL, thread_name_prefix="kubernetes")
        self._effects: set[asyncio.Task[None]] = set()
        self._pace = Pace(PARALLEL, PER_SECOND)

    # ---------------------------------------------------------------------------------------- life cycle

    async def start(self) -> Found:
        """Find what is there and follow it from now on."""
        loop = asyncio.get_running_loop()

        def deliver(seen: Seen) -> None:
            if not loop.is_closed():  # the thread may outlive the loop for a moment
                loop.call_soon_threadsafe(self._hear, seen)

        path = names.path("pods", self._spec.namespace)
        chosen = names.selector(self._spec.job_name, Replica.WORKER)
        self._watcher = Watcher(self._api, path, {"labelSelector": chosen}, deliver)
        # A daemon: a watch waits for the server, and the process must not wait for the watch.
        threading.Thread(target=self._watcher.run, name="watch", daemon=True).start()
        await self._listed.wait()
        if names.ADOPTS in (self._owner["metadata"].get("annotations") or {}):
            self._soon(self._adopt())
        living = tuple(sorted(i for i in self._pods if i not in self._over))
        running = tuple(i for i in living if not _never_ran(self._pods[i]))
        return Found(living, running, max(self._pods, default=-1) + 1)

    async def _adopt(self) -> None:
        """Of a job whose manifests were applied by hand: Secret and Service go when the master's pod does."""
        change = {"metadata": {"ownerReferences": [reference(self._owner)]}}
        own = {
            "secrets": names.secret_name(self._spec.job_name),
            "services": names.master_name(self._spec.job_name),
            "networkpolicies": names.secret_name(self._spec.job_name),
        }
        for kind, name in own.items():
            path = names.path(kind, self._spec.namespace, name)
            delays = growing(FIRST_DELAY, LONGEST_DELAY)
            while not self._closed:
                try:
                    await self._call(partial(self._api.patch, path, change))
                    break
                except ClusterError as error:
                    if isinstance(error, ApiRefused) and error.status == FORBIDDEN:
                        text = f"{STAYS.format(kind=kind, name=name)} {error}"
                        self._news.put_nowait(Note(NoteKind.NOTICE, text))
                        break
                    log.debug("%s %s is not adopted yet: %s", kind, name, error)  # it may not be there yet
                await asyncio.sleep(next(delays))

    async def close(self) -> None:
        """End what is left; pods that ended by themselves stay for their logs."""
        self._closed = True
        left = [pod for i, pod in self._pods.items() if i not in self._over or _never_ran(pod)]
        await asyncio.gather(*(self._remove(pod) for pod in left))
        if self._watcher is not None:
            self._watcher.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def next_news(self) -> News:
        return await self._news.get()

    # ------------------------------------------------------------------------------------------- launching

    async def launch(self, worker_id: int) -> None:
        """Make the pod; while the API server does not let us, try again and say why."""
        self._on_launch(worker_id)
        self._slots[worker_id] = self._free_slot()
        manifest = self._manifest(worker_id)
        delays = growing(FIRST_DELAY, LONGEST_DELAY)
        while not self._closed and worker_id not in self._unwanted:
            try:
                pod = await self._create(worker_id, manifest)
            except ClusterError as error:
                if await self._is_hopeless(worker_id, error):
                    return
                self._describe(worker_id, f"cannot be made: {error}")
                await asyncio.sleep(max(next(delays), getattr(error, "retry_after", 0.0)))
            else:
                self._made(worker_id, pod)
                return
        self._end(worker_id, Over(Cause.DISRUPTED, "was not needed any more"))

    def plan(self, worker_id: int) -> DryRun:
        return DryRun(objects=(self._manifest(worker_id),))

    def _manifest(self, worker_id: int) -> Object:
        slot = self._slots.get(worker_id, self._free_slot())
        pod = owned(worker_pod(self._spec, worker_id, slot, self._office), self._owner)
        return adapted_by_file(self._spec.cluster_spec, pod) if self._spec.cluster_spec else pod

    async def _create(self, worker_id: int, manifest: Object) -> Object:
        path = names.path("pods", self._spec.namespace)
        try:
            return await self._call(partial(self._api.create, path, manifest))
        except ApiRefused as error:
            if error.status != 409 or error.reason != "AlreadyExists":
                raise
            # An earlier request may have succeeded although its answer was lost.
            name = names.worker_name(self._spec.job_name, worker_id)
            return await self._call(partial(self._api.get, names.path("pods", self._spec.namespace, name)))

    def _made(self, worker_id: int, pod: Object) -> None:
        if not self._is_ours(pod):
            name = pod["metadata"]["name"]
            self._end(worker_id, Over(Cause.DISRUPTED, f"found its name taken: {name} is another job's pod"))
            return
        self._since.setdefault(worker_id, clock.now())
        self._pods.setdefault(worker_id, pod)
        if worker_id in self._unwanted:
            self._soon(self._delete(worker_id, None))

    async def _is_hopeless(self, worker_id: int, error: ClusterError) -> bool:
        """Whether trying again cannot help; then the worker's end is told."""
        if not isinstance(error, ApiRefused):
            return False
        if error.status in (400, 422):
            self._end(worker_id, Over(Cause.INVALID, f"cannot be made: {error}"))
            return True
        if error.status == FORBIDDEN and not await self._may_create():
            cure = RBAC_CURE.format(namespace=self._spec.namespace)
            words = f"cannot be made: {error} Give the master's service account the right: {cure}"
            self._end(worker_id, Over(Cause.INVALID, words))
            return True
        return False  # a quota or another admission rule: room may come

    async def _may_create(self) -> bool:
        try:
            return await self._call(partial(self._api.may, self._spec.namespace, "create", "pods"))
        except ClusterError:
            return True  # not known; the next attempt will tell

    def _free_slot(self) -> int:
        taken = {self._slots[i] for i in self._slots if i not in self._over}
        return next(slot for slot in range(len(taken) + 1) if slot not in taken)

    def _is_ours(self, pod: Object) -> bool:
        owners = pod["metadata"].get("ownerReferences") or []
        return any(owner["uid"] == self._owner["metadata"]["uid"] for owner in owners)

    # --------------------------------------------------------------------------------------------- ending

    async def terminate(self, worker_id: int) -> None:
        self._unwanted.add(worker_id)
        await self._delete(worker_id, None)

    async def kill(self, worker_id: int) -> None:
        """Also where the node does not answer: the API server forgets the pod at once.

        Its process may live on behind a broken network; generations keep it out of the ring.
        """
        self._unwanted.add(worker_id)
        await self._delete(worker_id, 0)

    async def _delete(self, worker_id: int, grace: int | None) -> None:
        pod = self._pods.get(worker_id)
        if pod is None or worker_id in self._over:
            return
        path = names.path("pods", self._spec.namespace, pod["metadata"]["name"])
        delays = growing(FIRST_DELAY, LONGEST_DELAY)
        while worker_id not in self._over and not self._closed:
            try:
                await self._call(partial(self._api.delete, path, grace, pod["metadata"]["uid"]))
                return
            except ClusterError as error:
                log.debug("pod %s is not deleted yet: %s", pod["metadata"]["name"], error)
                await asyncio.sleep(next(delays))

    async def _remove(self, pod: Object) -> None:
        """The last attempt: nobody is left to try again."""
        name = pod["metadata"]["name"]
        path = names.path("pods", self._spec.namespace, name)
        try:
            await self._call(partial(self._api.delete, path, None, pod["metadata"]["uid"]))
        except ClusterError as error:
            log.warning("pod %s could not be deleted: %s", name, error)

    # --------------------------------------------------------------------------------------------- hearing

    def _hear(self, seen: Seen) -> None:
        match seen:
            case Listed(objects, asked):
                found = {i: pod for pod in objects if (i := self._ours(pod)) is not None}
                for worker_id, pod in found.items():
                    self._look(worker_id, pod)
                for worker_id, pod in list(self._pods.items()):
                    if worker_id not in found and self._since[worker_id] < asked:
                        self._end(worker_id, pod_causes.removed(pod))
                self._listed.set()
            case Changed(pod):
                if (ours := self._ours(pod)) is not None:
                    self._look(ours, pod)
            case Removed(pod):
                if (ours := self._ours(pod)) is not None:
                    self._pods[ours] = pod
                    self._end(ours, pod_causes.removed(pod))

    def _ours(self, pod: Object) -> int | None:
        return names.worker_id_of(pod) if self._is_ours(pod) else None

    def _look(self, worker_id: int, pod: Object) -> None:
        self._since.setdefault(worker_id, clock.now())
        self._pods[worker_id] = pod
        slot = pod["metadata"].get("annotations", {}).get(names.SLOT, "")
        if slot.isdecimal():
            self._slots.setdefault(worker_id, int(slot))
        if worker_id in self._over:
            return
        loop = asyncio.get_running_loop()
        match pod_causes.read(pod):
            case Over() as over:
                self._end(worker_id, over)
            case Running():
                self._any_ran = True
                self._conditions.pop(worker_id, None)
            case Coming(text, broken):
                if broken and not self._any_ran:
                    loop.call_later(BROKEN_SECONDS, self._check_broken, worker_id)
                self._describe(worker_id, f"waits: {text}" if text else "")
            case Leaving(text, until):
                self._describe(worker_id, text)
                if pod["status"].get("phase") == "Pending":
                    self._soon(self.kill(worker_id))  # nothing of it ran: there is nothing to wait for
                else:
                    patience = max(0.0, until - clock.wall()) + OVERDUE_SECONDS
                    loop.call_later(patience, self._check_overdue, worker_id)

    def _check_broken(self, worker_id: int) -> None:
        if self._any_ran or worker_id in self._over:
            return
        reading = pod_causes.read(self._pods[worker_id])
        if isinstance(reading, Coming) and reading.broken:
            self._end(worker_id, Over(Cause.INVALID, f"cannot start: {reading.text}"))

    def _check_overdue(self, worker_id: int) -> None:
        if worker_id not in self._over and not self._closed:
            self._note(f"worker {worker_id} is overdue: its node does not answer, so it is forgotten")
            self._soon(self.kill(worker_id))

    def _end(self, worker_id: int, over: Over) -> None:
        if worker_id in self._over:
            return
        self._over.add(worker_id)
        self._conditions.pop(worker_id, None)
        self._news.put_nowait(Ended(worker_id, over.cause, over.text))

    def _describe(self, worker_id: int, text: str) -> None:
        """Tell a person when it changes, and once for all workers with the same trouble."""
        known = text in self._conditions.values()
        if text:
            self._conditions[worker_id] = text
        else:
            self._conditions.pop(worker_id, None)
        if text and not known:
            self._note(f"worker {worker_id} {text}")

    def _note(self, text: str) -> None:
        self._news.put_nowait(Note(NoteKind.POD, text))

    # ------------------------------------------------------------------------------------------- for people

    def facts(self, worker_id: int) -> WorkerFacts:
        name = names.worker_name(self._spec.job_name, worker_id)
        node = self._pods.get(worker_id, {}).get("spec", {}).get("nodeName") or ""
        return WorkerFacts(name=name, condition=self._conditions.get(worker_id, ""), node=node)

    async def last_words(self, worker_id: int) -> str:
        name = names.worker_name(self._spec.job_name, worker_id)
        path = names.path("pods", self._spec.namespace, name)
        try:
            return await self._call(partial(self._api.text, f"{path}/log", tailLines=TAIL_LINES))
        except ClusterError:
            return ""  # its container never ran, or the pod is gone

    def _soon(self, effect: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(effect)
        self._effects.add(task)
        task.add_done_callback(self._effects.discard)

    async def _call(self, request: Callable[[], T]) -> T:
        async with self._pace:
            return await asyncio.get_running_loop().run_in_executor(self._threads, request)


def _never_ran(pod: Object) -> bool:
    """It may be given up because its image is missing, and wait for that image for ever."""
    return bool(pod.get("status", {}).get("phase", "Pending") == "Pending")
