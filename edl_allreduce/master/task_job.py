"""Evaluation and prediction jobs: workers pull tasks, the master counts each result once.

Keeping workers alive is the same as in training; behind the one door (`_handle`) there is a task queue
instead of the membership machine, since these workers need no ring.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

from edl_allreduce import clock
from edl_allreduce.cluster.base import Cluster
from edl_allreduce.core import protocol
from edl_allreduce.core.causes import Cause
from edl_allreduce.core.membership import types as membership
from edl_allreduce.core.progress import Place
from edl_allreduce.core.status import EventRecord, JobStatus, WorkerStatus
from edl_allreduce.core.tasks import TaskQueue
from edl_allreduce.master.job import FINAL, Job, JobOptions, Peer, Phase
from edl_allreduce.spec import JobSpec, JobType

log = logging.getLogger(__name__)


def job_for(
    spec: JobSpec,
    options: JobOptions,
    cluster: Cluster,
    on_event: Callable[[EventRecord], None] = lambda event: None,
) -> Job:
    """Training needs a ring, evaluation and prediction only a queue."""
    if spec.job_type in (JobType.EVALUATION_ONLY, JobType.PREDICTION_ONLY):
        size = spec.minibatch_size * spec.num_minibatches_per_task
        return TaskJob(options, cluster, on_event, task_records=size)
    return Job(options, cluster, on_event)


class TaskJob(Job):
    """One evaluation or prediction job."""

    def __init__(
        self,
        options: JobOptions,
        cluster: Cluster,
        on_event: Callable[[EventRecord], None] = lambda event: None,
        *,
        task_records: int,
    ) -> None:
        super().__init__(options, cluster, on_event)
        self._task_records = task_records
        self._queue: TaskQueue | None = None
        self._version = -1
        """The step of the checkpoint: the first worker's choice holds for all."""
        self._records = 0
        self._sums: list[float] = []
        self._waiting: set[str] = set()
        """Ready workers that have no task."""
        self._concluder = ""
        self._away: dict[str, float] = {}
        """Since when workers have no connection."""

    # ------------------------------------------------------------------------------------------ hearing

    def _ready(self, uid: str, peer: Peer, message: protocol.Ready) -> None:
        if self._queue is None:
            self._queue = TaskQueue(message.records, self._task_records)
            self._records, self._version = message.records, message.step
            tasks = f"{message.records} records in {self._queue.total} tasks"
            self._tell("tasks", f"{tasks}, model of step {message.step}")
        super()._ready(uid, peer, dataclasses.replace(message, total_steps=self._queue.total))

    def _hear(self, uid: str, peer: Peer, message: protocol.FromWorker) -> None:
        match message:
            case protocol.TaskDone():
                self._task_done(uid, message)
            case protocol.Concluded():
                self._concluded(message)
            case _:
                super()._hear(uid, peer, message)

    def _handle(self, event: membership.Event) -> None:
        if self._phase in FINAL:
            return
        match event:
            case membership.Heard(uid, protocol.Ready()):
                self._waiting.add(uid)
                self._phase = Phase.WORKING
            case membership.Heard(uid, protocol.Draining()):
                self._waiting.discard(uid)
            case membership.Heard(uid, protocol.Hello()):
                # Back over another connection: what it had was lost with the last.
                self._away.pop(uid, None)
                self._lost(uid)
            case membership.Tick():
                self._evict_overdue()
            case membership.Away(uid):
                self._away[uid] = clock.now()
                self._lost(uid)
            case membership.Lost(uid):
                self._away.pop(uid, None)
                self._lost(uid)
            case membership.Stopping():
                self._end(Phase.STOPPED, self._stopping)
                return
        self._give_out()

    # -------------------------------------------------------------------------------------------- tasks

    def _give_out(self) -> None:
        queue = self._queue
        if queue is None:
            return
        for uid in sorted(self._waiting):
            task = queue.take(uid)
            if task is None:
                break
            self._waiting.discard(uid)
            order = protocol.DoTask(task.number, task.attempt, task.start, task.stop, self._version)
            self._peers[uid].outbox.put_nowait(order)
        if queue.finished and not self._concluder and self._waiting:
            self._concluder = min(self._waiting)
            order_ = protocol.Conclude(self._sums, queue.total, self._records)
            self._peers[self._concluder].outbox.put_nowait(order_)

    def _task_done(self, uid: str, message: protocol.TaskDone) -> None:
        queue = self._queue
        if queue is None or not queue.complete(uid, message.number, message.attempt):
            log.info("a result of task %d came too late and does not count", message.number)
        elif message.sums:
            sums = self._sums or [0.0] * len(message.sums)
            self._sums = [a + b for a, b in zip(sums, message.sums, strict=True)]
        self._place = Place(step=queue.done if queue is not None else 0)
        worker_id = self._peers[uid].hello.seat.worker_id
        self._proved(worker_id)
        slot = self._slots.get(worker_id)
        if slot is None or not slot.draining:
            self._waiting.add(uid)
        self._give_out()

    def _evict_overdue(self) -> None:
        """Who lost its connection and does not come back makes room for another."""
        limit = self.options.deadlines.silent_import
        for uid in [uid for uid, since in self._away.items() if clock.now() - since > limit]:
            del self._away[uid]
            self._evict(uid, Cause.SILENT, f"is gone: it did not come back within {limit:.0f} s")

    def _lost(self, uid: str) -> None:
        self._waiting.discard(uid)
        if uid == self._concluder:
            self._concluder = ""
        if self._queue is not None and (count := self._queue.give_back(uid)):
            self._tell("redo", f"{count} task of a lost worker is given out again")

    def _concluded(self, message: protocol.Concluded) -> None:
        if message.metrics:
            self._evaluated(protocol.Evaluated(self._version, message.metrics))
        self._path = message.path
        remarks = f"; {self._account.remarks}" if self._account.remarks else ""
        self._end(Phase.SUCCEEDED, f"{self._records} records{remarks}")

    # ------------------------------------------------------------------------------------------ telling

    def status(self) -> JobStatus:
        status = super().status()
        workers = []
        for uid, peer in self._peers.items():
            seat, last = peer.hello.seat, peer.last
            tasks = self._queue.doing(uid) if self._queue is not None else []
            facts = self._cluster.facts(seat.worker_id)
            workers.append(
                WorkerStatus(
                    worker_id=seat.worker_id,
                    host=seat.host,
                    standing="working" if tasks else "waiting",
                    rank=-1,
                    activity=last.activity.value if last is not None else "",
                    step=tasks[0].number if tasks else 0,
                    pid=facts.pid,
                    name=facts.name,
                )
            )
        known = {w.worker_id for w in workers}
        workers += [w for w in status.workers if w.worker_id not in known]
        workers.sort(key=lambda w: w.worker_id)
        return dataclasses.replace(status, workers=workers, counts="task")
