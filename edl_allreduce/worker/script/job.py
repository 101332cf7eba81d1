"""The public names: a job that a script joins, and its steps."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
import tensorflow as tf

from edl_allreduce.core.schedule import Order, Schedule, Span
from edl_allreduce.errors import UsageError
from edl_allreduce.spec import JobSpec
from edl_allreduce.worker.keras.fingerprint import of_script
from edl_allreduce.worker.loop.assemble import Program
from edl_allreduce.worker.loop.feeding import IndexFeed
from edl_allreduce.worker.loop.steps import Contribution, MicroBatch, StepInput
from edl_allreduce.worker.script.part import Part, job_flags
from edl_allreduce.worker.script.state import SharedState, Value
from edl_allreduce.worker.script.trainer import Loop, Reducer
from edl_allreduce.worker.script.turns import (
    Brought,
    Gone,
    Handover,
    Mean,
    Offer,
    Over,
    Save,
    Saved,
    StepAgain,
    StepApplied,
)

log = logging.getLogger("edl_allreduce.elastic")


class Step:
    """One step of the job. Use it as a context: `with step:` around everything that belongs to the step.

    When a worker is lost in the middle, the rest of the body is skipped and the same step comes again with
    other indices. So change state only after `average` returned.
    """

    def __init__(self, job: ElasticJob, step: StepInput, *, rehearsal: bool = False) -> None:
        self._job = job
        self.number: int = step.number
        """Steps that were trained before this one."""
        self.indices: np.ndarray[Any, Any] = step.parts[0].features
        """Records that this worker uses in this step. Never empty: where a worker has none it gets one that
        counts nothing."""
        self.rank: int = step.rank
        self.size: int = step.size
        """Workers in the ring."""
        self.rehearsal: bool = rehearsal
        """True once, before this worker joins: everything is traced, and the state is set back afterwards."""
        self.loss: float = float("nan")
        """Mean over the whole batch, known after `average`."""
        self._averaged = False
        self._closed = False

    def average(self, gradients: Sequence[Any], loss: Any = None) -> list[Any]:
        """The mean of the gradients over all records of the step. Call it exactly once.

        `gradients` and `loss` are means over this worker's records; how many these are is taken into account.
        The loss is for people to look at, and for --on_nan.
        """
        if self._averaged or self._closed:
            raise UsageError("step.average must be called exactly once in each step, inside `with step:`.")
        tensors = [tf.convert_to_tensor(g) for g in gradients]
        mean, self.loss = self._job._average(self, tensors, loss)
        self._averaged = True
        return mean

    def __repr__(self) -> str:
        rehearsal = ", rehearsal" if self.rehearsal else ""
        return (
            f"Step({self.number}, {len(self.indices)} records, rank {self.rank} of {self.size}, "
            f"loss {self.loss:.6g}{rehearsal})"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._closed = True
        if isinstance(error, StepAgain):
            return True
        if error is None:
            if not self._averaged:
                raise UsageError(
                    "a step ended without step.average: the other workers wait for its gradients."
                )
            self._job._applied(self)
        return False


class ElasticJob:
    """This process's part in the job; made by `join`."""

    def __init__(
        self,
        spec: JobSpec,
        schedule: Schedule,
        state: SharedState,
        values: dict[str, Value],
        save: Callable[[], object] | None,
        batch_size: int | None = None,
    ) -> None:
        self.values = values
        """Plain values (numbers, text, lists, dicts) that all workers keep in step, as JSON."""
        self.finished = False
        """Whether the training is complete; False after this worker was drained or evicted."""
        self._spec = spec
        self._schedule = schedule
        self._state = state
        self._save = save
        self._batch_size = batch_size
        self._handover = Handover()
        self._part = Part(spec)
        self._worker = self._part.worker
        self._reducer = Reducer(self._worker.ring)
        self._loop = Loop(state, self._handover, self._reducer, self._worker.orders.progress)
        self._gradients = ""
        """What the rehearsal averaged."""

    def __repr__(self) -> str:
        return f"ElasticJob(worker {self.worker_id}, {'finished' if self.finished else 'not finished'})"

    @property
    def worker_id(self) -> int:
        return self._worker.orders.seat.worker_id

    def steps(self, *, rehearse: bool = True) -> Iterator[Step]:
        """All steps of the job, in turn with the other workers. Use each as `with step:`.

        `rehearse`: run the body once alone before joining, so that the others never wait while it is traced.
        """
        if rehearse:
            yield from self._rehearse()
        self._start_engine()
        while True:
            match self._handover.to_loop.get():
                case Offer(offered):
                    step = Step(self, offered)
                    yield step
                    if not step._closed:
                        raise UsageError("write `with step:` around the body of the loop.")
                case Save():
                    self._handover.say(Saved(str(self._save() or "") if self._save is not None else ""))
                case Over() as over:
                    self.finished = self._part.over(over)
                    return

    def stop(self) -> None:
        """Let the whole job end, as early stopping does; all workers after the same step.

        The wish travels with the gradients: called after `average`, it counts for the next step.
        """
        self._loop.stop_wanted = True

    # ---------------------------------------------------------------------------------- for Step

    def _average(self, step: Step, tensors: list[Any], loss: Any) -> tuple[list[Any], float]:
        if step.rehearsal:
            alone = Contribution(tensors, loss, records=1, batch=1)
            mean, result = self._reducer(alone, switch=False, stop=False, drain=False)
            self._gradients = ", ".join(f"{tuple(t.shape)} {t.dtype.name}" for t in tensors)
            return mean, result.loss
        self._handover.say(Brought(tensors, loss))
        answer = self._handover.to_loop.get()
        if isinstance(answer, Mean):
            return answer.tensors, answer.loss
        if isinstance(answer, Over):
            self.finished = self._part.over(answer)
        raise StepAgain

    def _applied(self, step: Step) -> None:
        if not step.rehearsal:
            self._handover.say(StepApplied())

    # ---------------------------------------------------------------------------------- life cycle

    def _rehearse(self) -> Iterator[Step]:
        worker = self._worker
        worker.meet_nobody()
        before = self._state.state()
        batch = max(1, (self._batch_size or self._spec.global_batch_size) // max(1, self._spec.num_workers))
        first = self._schedule.order.indices(Span(0, 0, min(batch, self._schedule.order.records)))
        part = MicroBatch(np.array(first), None, len(first))
        yield Step(self, StepInput(0, [part], 0, len(first)), rehearsal=True)
        self._state.restore(before)
        self._loop.stop_wanted = False
        worker.ring.leave()

    def _start_engine(self) -> None:
        same = f"{self._schedule.order}, {self._state.signature()}"
        program = Program(
            trainer=self._loop,
            schedule=self._schedule,
            open_feed=functools.partial(IndexFeed, self._schedule),
            export=self._loop.export,
            fingerprint=hashlib.sha256(same.encode()).hexdigest()[:16],
            batch_size=self._batch_size,
            model={**of_script(), "gradients": self._gradients},
        )
        self._part.start(program, self._part.assemble(program), self._handover.to_loop.put)

    def __enter__(self) -> Self:
        self._part.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        left = None
        if error is None and not self._part.ended:
            left = UsageError(
                "the loop was left before the job was over; job.stop() ends the job for all workers, and "
                "SIGTERM lets this one leave."
            )
        if error is not None or left is not None:
            self._handover.say(Gone())
        self._part.close(error or left)
        if left is not None:
            raise left
        if self._part.exit_code:  # ending with the script's own 0 would look like a crash
            log.info("no master heard that this worker leaves: the script ends here")
            sys.exit(self._part.exit_code)


def join(
    *,
    records: int,
    state: Mapping[str, Any] | Sequence[Any],
    batch_size: int | None = None,
    epochs: int | None = None,
    values: Mapping[str, Value] | None = None,
    save: Callable[[], object] | None = None,
) -> ElasticJob:
    """Take part in the job that started this process; alone when none did.

    records: how many records the data has; steps name them by index.
    state: what all workers keep in step: models, optimizers, variables, as a list or with names as a dict.
    batch_size: records of one step over all workers; by default minibatch_size x num_workers of the job.
    epochs: passes over the data; by default --num_epochs of the job.
    values: plain values to begin with; see `ElasticJob.values`.
    save: called on one worker when the training is over; what it returns is the path of the result.
    """
    spec = job_flags()
    if epochs is not None:
        spec = dataclasses.replace(spec, num_epochs=epochs)
    order = Order(records, seed=spec.seed, shuffle=spec.shuffle)
    schedule = Schedule(order, epochs=spec.num_epochs, max_step=spec.max_step)
    plain = dict(values or {})
    return ElasticJob(spec, schedule, SharedState(state, plain), plain, save, batch_size)
