"""A master whose job has a TrainingJob: it follows the controller's orders and tells it how far the job is.

Both are annotations of the master's own pod. A master whose pod is gone, or whose name another pod has, is
not the job's master any more, whatever its node believes: it leaves, and its workers go to the next one.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Protocol

from edl_allreduce import clock
from edl_allreduce.cluster.kubernetes import names
from edl_allreduce.cluster.kubernetes.names import Object
from edl_allreduce.cluster.kubernetes.watching import Changed, Listed, Lister, Removed, Seen, Watcher
from edl_allreduce.core.controller import account, mail
from edl_allreduce.core.controller.mail import Orders, Progress
from edl_allreduce.core.protocol import Command, NoteKind, Scale
from edl_allreduce.core.status import JobStatus
from edl_allreduce.errors import ClusterError, UsageError

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
REPORT_SECONDS = 10.0
"""How often progress is written; at once when the job's phase or ring changes, or a size was measured."""
LAST_TRIES = 5


SIZED_BY = "sized by"
"""Among what the page tells about a job: then it has no button that would be refused."""


def sized_by(pod: Object) -> dict[str, str]:
    """For the page of a job whose size its TrainingJob has: who keeps it, and how it is changed."""
    name, where = pod["metadata"]["labels"].get(names.JOB_LABEL, "NAME"), pod["metadata"]["namespace"]
    return {SIZED_BY: f"the cluster's controller; kubectl scale tj {name} -n {where} --replicas=…"}


class OwnPodApi(Lister, Protocol):
    """The part of the API that is needed here."""

    def patch(self, path: str, change: Object) -> Object: ...


class Commanded(Protocol):
    """The part of the job's shell that is needed here."""

    def status(self) -> JobStatus: ...

    def scale(self, count: int, leaving: tuple[int, ...] = ()) -> None: ...

    def stop(self, reason: str) -> None: ...

    def note(self, kind: NoteKind, text: str) -> None: ...


class Mailbox:
    """The annotations of this master's pod."""

    def __init__(
        self,
        api: OwnPodApi,
        pod: Object,
        job: Commanded,
        *,
        next_id: Callable[[], int],
        wanted: Callable[[int], None],
        leave: Callable[[str], None],
    ) -> None:
        """`wanted` is told each new number of workers; `leave` ends the process, not the job."""
        self._api, self._pod, self._job = api, pod["metadata"], job
        self._path = names.path("pods", self._pod["namespace"], self._pod["name"])
        self._next_id, self._wanted, self._leave = next_id, wanted, leave
        annotations = self._pod.get("annotations") or {}
        self.carried = mail.read_progress(annotations.get(mail.PROGRESS, ""))
        self._account = account.begin(self.carried, next_id())
        self._followed: Orders | None = None
        self._term = 0
        self._shown: tuple[object, ...] = ()
        self._reported = float("-inf")
        self._watcher: Watcher | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Follow the pod from now on; in the loop of the job."""
        loop = asyncio.get_running_loop()

        def deliver(seen: Seen) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._hear, seen)

        collection = names.path("pods", self._pod["namespace"])
        chosen = {"fieldSelector": f"metadata.name={self._pod['name']}"}
        self._watcher = Watcher(self._api, collection, chosen, deliver, what="the master's own pod")
        threading.Thread(target=self._watcher.run, name="orders", daemon=True).start()
        self._task = asyncio.create_task(self._report())

    async def close(self) -> None:
        """Tell the end: whoever reads it does not look for another master."""
        if self._watcher is not None:
            self._watcher.close()
        if self._task is not None:
            self._task.cancel()
        for _ in range(LAST_TRIES):
            if await self._write(self._progress()):
                return
            await asyncio.sleep(LOOK_SECONDS)

    # --------------------------------------------------------------------------------------------- orders

    def _hear(self, seen: Seen) -> None:
        match seen:
            case Listed(objects):
                if not objects:
                    self._leave("its pod is gone from the API server")
                for pod in objects:
                    self._read(pod)
            case Changed(pod):
                self._read(pod)
            case Removed(pod):
                if pod["metadata"]["uid"] == self._pod["uid"]:
                    self._leave("its pod is gone from the API server")

    def _read(self, pod: Object) -> None:
        if pod["metadata"]["uid"] != self._pod["uid"]:
            self._leave("another pod is the master of this job")
            return
        orders = mail.orders_in(pod["metadata"].get("annotations") or {})
        if orders is not None:
            self.follow(orders)

    def follow(self, orders: Orders) -> None:
        """Also those on the pod when it was made."""
        if orders == self._followed or orders.term < self._term:
            return
        self._followed, self._term = orders, orders.term
        if orders.stop:
            self._job.stop(orders.stop)
        elif orders.workers != self._job.status().wanted:
            try:
                self._job.scale(orders.workers, orders.leaving)
            except UsageError as error:
                self._job.note(NoteKind.CONTROLLER, f"the controller wants {orders.workers} workers: {error}")
                return
            self._wanted(orders.workers)

    def check(self, command: Command) -> None:
        """The controller keeps the size: another one would last until its next orders, without a word."""
        if not isinstance(command, Scale):
            return
        job, where = self._job.status().job_name, self._pod["namespace"]
        count = command.num_workers
        raise UsageError(
            f"the size of {job} is that of its TrainingJob, which the cluster's controller keeps. "
            f"Ask there: `elasticdl scale --job_name={job} --namespace={where} --num_workers={count}` "
            f"(or `kubectl scale tj {job} -n {where} --replicas={count}`)."
        )

    # ------------------------------------------------------------------------------------------- progress

    def _progress(self) -> Progress:
        return account.progress(self._account, self._job.status(), clock.wall(), self._next_id())

    async def _report(self) -> None:
        while True:
            try:
                await self._look()
            except Exception:
                log.exception("the job's progress could not be told; it is tried again")
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self) -> None:
        status = self._job.status()
        seen = account.watch(self._account, status, clock.now())
        self._account = account.sample(seen, status, clock.now())
        ranks = [worker.rank for worker in status.workers]
        shown = (status.phase, status.wanted, ranks, self._next_id(), set(self._account.step_seconds))
        due = clock.now() - self._reported >= REPORT_SECONDS
        if (due or shown != self._shown) and await self._write(self._progress()):
            self._shown = shown
            self._reported = clock.now()

    async def _write(self, progress: Progress) -> bool:
        change = {"metadata": {"uid": self._pod["uid"], "annotations": {mail.PROGRESS: progress.text()}}}
        try:
            await asyncio.to_thread(self._api.patch, self._path, change)
        except ClusterError as error:
            log.debug("the job's progress could not be written: %s", error)
            return False
        return True
