"""Your own training loop in an elastic job. The public names are in `edl_allreduce.elastic`.

The engine (plans, rings, agreement on the state, audit, checkpoints) runs in a thread of its own and treats
the user's loop as its trainer: `compute` offers a step and waits until the loop brings gradients, `commit`
sums them, hands the mean over and waits until the loop has applied it. One of the two runs at any time.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import shlex
import signal
import sys
import threading
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from types import TracebackType
from typing import Any, NoReturn, Self

import msgspec
import numpy as np
import tensorflow as tf

from edl_allreduce.core.deadlines import Deadlines
from edl_allreduce.core.health import Activity
from edl_allreduce.core.membership import Plan, Seat
from edl_allreduce.core.schedule import Order, Schedule, Span, share
from edl_allreduce.errors import EdlError, JobFailed, UsageError
from edl_allreduce.rpc import messages
from edl_allreduce.spec import ElasticBatch, JobSpec, parse_job
from edl_allreduce.worker.audit import Diary
from edl_allreduce.worker.checkpoint import Checkpoints, Course
from edl_allreduce.worker.control import Control
from edl_allreduce.worker.engine import ElasticRing, Ending, Engine, Orders, Settings
from edl_allreduce.worker.launching import FLAGS, MASTER, TOKEN, WORKER
from edl_allreduce.worker.network import address_towards, interface_of
from edl_allreduce.worker.pipeline import MicroBatch, StepData
from edl_allreduce.worker.ring import BROKEN, FixedRing, HorovodRing, Ring, SoloRing, broken
from edl_allreduce.worker.static import find_launcher
from edl_allreduce.worker.trainer import DRAIN, LOSS, STOP, SWITCH, WEIGHT, StepResult
from edl_allreduce.worker.unled import Unled

log = logging.getLogger("edl_allreduce.elastic")

VALUES_BYTES = 64 * 1024
"""Room for plain values: they travel in one array of a size that all workers know beforehand."""

LAST_WORDS_SECONDS = 2.0

Value = bool | int | float | str | list[Any] | dict[str, Any] | None
"""What JSON can say."""


# ------------------------------------------------------------------------------------- turn and turn about


@dataclass(frozen=True)
class _Offer:
    """Engine to loop: train this step."""

    data: StepData
    number: int
    rank: int
    size: int


@dataclass(frozen=True)
class _Brought:
    """Loop to engine: this worker's gradients."""

    tensors: list[Any]
    loss: Any


@dataclass(frozen=True)
class _Mean:
    """Engine to loop: the mean over the ring."""

    tensors: list[Any]
    loss: float


@dataclass(frozen=True)
class _Again:
    """Engine to loop: the ring broke, nothing of this step counts."""


@dataclass(frozen=True)
class _Applied:
    """Loop to engine: the step is part of this worker's state."""


@dataclass(frozen=True)
class _Save:
    """Engine to loop: write the result."""


@dataclass(frozen=True)
class _Saved:
    """Loop to engine."""

    path: str


@dataclass(frozen=True)
class _Gone:
    """Loop to engine: user code raised, nothing more will come."""


@dataclass(frozen=True)
class _Over:
    """Engine to loop: nothing more is to be trained here."""

    ending: Ending | None
    error: BaseException | None = None


class _LoopGone(Exception):
    """Ends the engine's thread after the loop is gone."""


class _StepAgain(BaseException):
    """Ends the body of a step whose ring broke. Not an Exception, so that no `except Exception` stops it."""


class _Handover:
    """Two threads, one of which runs while the other waits."""

    def __init__(self) -> None:
        self.to_loop: SimpleQueue[_Offer | _Mean | _Again | _Save | _Over] = SimpleQueue()
        self._to_engine: SimpleQueue[_Brought | _Applied | _Saved | _Gone] = SimpleQueue()

    def say(self, word: _Brought | _Applied | _Saved | _Gone) -> None:
        self._to_engine.put(word)

    def hear(self) -> _Brought | _Applied | _Saved:
        word = self._to_engine.get()
        if isinstance(word, _Gone):
            raise _LoopGone
        return word


# ----------------------------------------------------------------------------------------------- state


class _State:
    """Everything that all workers keep in step, as a flat list of arrays."""

    def __init__(self, state: Mapping[str, Any] | Sequence[Any], values: dict[str, Value]) -> None:
        items = dict(state) if isinstance(state, Mapping) else {str(i): item for i, item in enumerate(state)}
        self._variables = [
            (f"{name}/{getattr(v, 'path', v.name)}", v)
            for name, item in items.items()
            for v in _variables(name, item)
        ]
        if not self._variables:
            raise UsageError(
                "state is empty: name what all workers must keep in step, as in state=[model, optimizer]."
            )
        self._values = values

    def signature(self) -> str:
        """Which variables there are; workers that differ here cannot train together."""
        return ";".join(f"{tuple(v.shape)}{v.dtype}" for _, v in self._variables)

    def names(self) -> tuple[list[str], list[str]]:
        return [name for name, _ in self._variables], ["values"]

    def state(self) -> list[np.ndarray[Any, Any]]:
        text = msgspec.json.encode(self._values)
        if len(text) > VALUES_BYTES:
            raise UsageError(
                f"job.values takes {len(text)} bytes as JSON, {VALUES_BYTES} are allowed; keep arrays in "
                "variables and give those as state."
            )
        values = np.frombuffer(text.ljust(VALUES_BYTES), np.uint8).copy()
        return [*(np.array(v) for _, v in self._variables), values]

    def restore(self, arrays: Sequence[np.ndarray[Any, Any]]) -> None:
        for (_, variable), array in zip(self._variables, arrays[:-1], strict=True):
            variable.assign(array)
        self._values.clear()
        self._values.update(msgspec.json.decode(arrays[-1].tobytes()))


def _variables(name: str, item: Any) -> list[Any]:
    """The variables of a model, an optimizer, a layer, a metric, a list, or a single variable."""
    if getattr(item, "built", True) is False:
        raise UsageError(
            f"state {name!r} ({type(item).__name__}) has no variables yet: call its build() before join, "
            "as in optimizer.build(model.trainable_variables)."
        )
    if isinstance(item, (list, tuple)):
        return [v for part in item for v in _variables(name, part)]
    found = getattr(item, "variables", None)
    if found is not None:
        return list(found)
    if hasattr(item, "assign"):
        return [item]
    raise UsageError(
        f"state {name!r} is a {type(item).__name__}; expected something with variables (model, optimizer, "
        "tf.Variable, or a list of them). Plain values belong into job.values."
    )


# --------------------------------------------------------------------------------- what the engine sees


class _Indices:
    """The steps of one rank in one generation; nothing is read, the loop reads by index."""

    def __init__(
        self, schedule: Schedule, *, rank: int, size: int, step: int, position: int, global_batch: int
    ) -> None:
        self._schedule = schedule
        self._rank, self._size = rank, size
        self._position = position
        self._batch = global_batch

    def take(self) -> StepData:
        span = self._schedule.span(self._position, self._batch)
        own = self._schedule.order.indices(share(span, self._rank, self._size))
        # More workers than records in the last batch of an epoch: somebody has none and lends a hand to one
        # that does not count, so that user code never meets an empty batch.
        fed = own or self._schedule.order.indices(Span(span.epoch, span.start, span.start + 1))
        self._position += len(span)
        return StepData(span, [MicroBatch(np.array(fed), None, len(own))], own, [])

    def close(self) -> None:
        """Nothing was opened."""


class _Loop:
    """The user's loop as the engine's trainer."""

    def __init__(self, state: _State, handover: _Handover, reducer: _Reducer) -> None:
        self._kept = state
        self._handover = handover
        self._reducer = reducer
        self.stop_wanted = False
        self.engine: Engine

    def compute(self, parts: Sequence[MicroBatch], step: int, position: int) -> tuple[Any, float, Any]:
        engine = self.engine
        data = StepData(Span(0, 0, 0), list(parts), [], [])
        self._handover.to_loop.put(_Offer(data, step, engine.ring.rank, engine.ring.size))
        brought = self._handover.hear()
        assert isinstance(brought, _Brought)
        batch = len(engine.schedule.span(engine.position, engine.settings.global_batch(engine.ring.size)))
        return brought.tensors, parts[0].records / batch, brought.loss

    def commit(
        self, sums: Any, weight: float, loss: Any, *, switch: bool, stop: bool, drain: bool
    ) -> StepResult:
        stop = stop or self.stop_wanted
        try:
            mean, result = self._reducer(sums, weight, loss, switch=switch, stop=stop, drain=drain)
        except BROKEN as error:
            self._handover.to_loop.put(_Again())
            raise broken(error) from error
        self.engine.control.progress.activity = Activity.COMPUTING  # applying is user code again
        self._handover.to_loop.put(_Mean(mean, result.loss))
        applied = self._handover.hear()
        assert isinstance(applied, _Applied)
        return result

    def names(self) -> tuple[list[str], list[str]]:
        return self._kept.names()

    def state(self) -> list[np.ndarray[Any, Any]]:
        return self._kept.state()

    def restore(self, arrays: Sequence[np.ndarray[Any, Any]]) -> None:
        self._kept.restore(arrays)

    def export(self) -> str:
        self._handover.to_loop.put(_Save())
        saved = self._handover.hear()
        assert isinstance(saved, _Saved)
        return saved.path


class _Reducer:
    """The weighted mean over the ring, in one operation with the votes. Traced once per list of shapes."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._sum = tf.function(self._graph)

    def __call__(
        self, tensors: list[Any], weight: float, loss: Any, *, switch: bool, stop: bool, drain: bool
    ) -> tuple[list[Any], StepResult]:
        share_of_loss = tf.cast(tf.convert_to_tensor(loss), tf.float32) * weight if weight else 0.0
        control = tf.stack([float(switch), float(stop), float(drain), weight, share_of_loss])
        mean, total = self._sum(tensors, tf.constant(weight, tf.float32), control)
        total = total.numpy()
        result = StepResult(
            loss=float(total[LOSS] / total[WEIGHT]),
            switch=total[SWITCH] > 0,
            stop=total[STOP] > 0,
            draining=round(float(total[DRAIN])),
        )
        return list(mean), result

    def _graph(self, tensors: list[Any], weight: Any, control: Any) -> tuple[list[Any], Any]:
        # Without a record of its own a worker may bring NaN; it must not count at all.
        parts = [tf.where(weight > 0, t * tf.cast(weight, t.dtype), tf.zeros_like(t)) for t in tensors]
        *summed, total = self._ring.sum([*parts, control])
        return [s / tf.cast(total[WEIGHT], s.dtype) for s in summed], total


# ------------------------------------------------------------------------------------------ public names


class Step:
    """One step of the job. Use it as a context: `with step:` around everything that belongs to the step.

    When a worker is lost in the middle, the rest of the body is skipped and the same step comes again with
    other indices. So change state only after `average` returned.
    """

    def __init__(self, job: ElasticJob, offer: _Offer, *, rehearsal: bool = False) -> None:
        self._job = job
        self.number: int = offer.number
        """Steps that were trained before this one."""
        self.indices: np.ndarray[Any, Any] = offer.data.parts[0].features
        """Records that this worker uses in this step. Never empty: where a worker has none it gets one that
        counts nothing."""
        self.rank: int = offer.rank
        self.size: int = offer.size
        """Workers in the ring."""
        self.rehearsal: bool = rehearsal
        """True once, before this worker joins: everything is traced, and the state is set back afterwards."""
        self.loss: float = float("nan")
        """Mean over the whole batch, known after `average`."""
        self._records = offer.data.parts[0].records
        self._averaged = False
        self._closed = False

    def average(self, gradients: Sequence[Any], loss: Any = float("nan")) -> list[Any]:
        """The mean of the gradients over all records of the step. Call it exactly once.

        `gradients` and `loss` are means over this worker's records; how many these are is taken into account.
        """
        if self._averaged or self._closed:
            raise UsageError("step.average must be called exactly once in each step, inside `with step:`.")
        tensors = [tf.convert_to_tensor(g) for g in gradients]
        mean, self.loss = self._job._average(self, tensors, loss)
        self._averaged = True
        return mean

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._closed = True
        if isinstance(error, _StepAgain):
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
        state: _State,
        values: dict[str, Value],
        save: Callable[[], object] | None,
    ) -> None:
        self.values = values
        """Plain values (numbers, text, lists, dicts) that all workers keep in step, as JSON."""
        self.finished = False
        """Whether the training is complete; False after this worker was drained or evicted."""
        self._spec = spec
        self._schedule = schedule
        self._state = state
        self._save = save
        self._handover = _Handover()
        self._member = _member(spec)
        self._reducer = _Reducer(self._member.ring)
        self._loop = _Loop(state, self._handover, self._reducer)
        self._ended = False
        self._draining = 0

    @property
    def worker_id(self) -> int:
        return self._member.orders.seat.worker_id

    def steps(self, *, rehearse: bool = True) -> Iterator[Step]:
        """All steps of the job, in turn with the other workers. Use each as `with step:`.

        `rehearse`: run the body once alone before joining, so that the others never wait while it is traced.
        """
        if rehearse:
            yield from self._rehearse()
        self._start_engine()
        while True:
            match self._handover.to_loop.get():
                case _Offer() as offer:
                    step = Step(self, offer)
                    yield step
                    if not step._closed:
                        raise UsageError("write `with step:` around the body of the loop.")
                case _Save():
                    self._handover.say(_Saved(str(self._save() or "") if self._save is not None else ""))
                case _Over(ending, error):
                    self._over(ending, error)
                    return

    def stop(self) -> None:
        """Let the whole job end after this step, as early stopping does."""
        self._loop.stop_wanted = True

    # ---------------------------------------------------------------------------------- for Step

    def _average(self, step: Step, tensors: list[Any], loss: Any) -> tuple[list[Any], float]:
        if step.rehearsal:
            mean, result = self._reducer(tensors, 1.0, loss, switch=False, stop=False, drain=False)
            return mean, result.loss
        self._handover.say(_Brought(tensors, loss))
        answer = self._handover.to_loop.get()
        if isinstance(answer, _Mean):
            return answer.tensors, answer.loss
        if isinstance(answer, _Over):
            self._over(answer.ending, answer.error)
        raise _StepAgain

    def _applied(self, step: Step) -> None:
        if not step.rehearsal:
            self._handover.say(_Applied())

    # ---------------------------------------------------------------------------------- life cycle

    def _rehearse(self) -> Iterator[Step]:
        member = self._member
        member.meet_nobody()
        before = self._state.state()
        batch = max(1, self._spec.global_batch_size // max(1, self._spec.num_workers))
        first = Span(0, 0, min(batch, self._schedule.order.records))
        data = StepData(
            first, [MicroBatch(np.array(self._schedule.order.indices(first)), None, len(first))], [], []
        )
        yield Step(self, _Offer(data, 0, 0, 1), rehearsal=True)
        self._state.restore(before)
        member.ring.leave()

    def _start_engine(self) -> None:
        spec, member = self._spec, self._member
        same = f"{self._schedule.order.records} records, {self._state.signature()}"
        fingerprint = hashlib.sha256(same.encode()).hexdigest()[:16]
        engine = Engine(
            settings=Settings(
                minibatch=spec.minibatch_size,
                num_workers=spec.global_batch_size // spec.minibatch_size,
                per_worker_batch=spec.elastic_batch is ElasticBatch.WORKER,
                log_loss_steps=spec.log_loss_steps,
                max_bad_records=0,
                audit_dir=spec.audit_dir,
            ),
            control=member.orders,
            ring=member.ring,
            trainer=self._loop,
            schedule=self._schedule,
            diary=Diary(spec.audit_dir, member.orders.seat.worker_id, member.orders.seat.uid),
            open_pipeline=lambda **where: _Indices(self._schedule, **where),
            export=self._loop.export,
            checkpoints=self._checkpoints(fingerprint),
        )
        self._loop.engine = engine
        member.ready(
            messages.Ready(
                step=0,
                has_state=False,
                fingerprint=fingerprint,
                total_steps=self._schedule.steps(spec.global_batch_size),
                global_batch=spec.global_batch_size,
            )
        )
        threading.Thread(target=self._run, args=(engine,), name="engine", daemon=True).start()

    def _checkpoints(self, fingerprint: str) -> Checkpoints | None:
        spec = self._spec
        if not (spec.checkpoint_steps or spec.checkpoint_dir):
            return None
        course = Course(spec.job_name, spec.seed, spec.shuffle, self._schedule.order.records, fingerprint)
        orders = self._member.orders
        return Checkpoints(
            spec.checkpoint_dir,
            self._loop,
            course,
            every=spec.checkpoint_steps,
            keep=spec.keep_checkpoint_max,
            tell=lambda kind, text: orders.send(messages.Note(kind, text)),
        )

    def _run(self, engine: Engine) -> None:
        try:
            over = _Over(engine.run())
        except _LoopGone:
            return
        except Exception as error:  # noqa: BLE001  handed over to the loop's thread, which raises it
            over = _Over(None, error)
        self._handover.to_loop.put(over)

    def _over(self, ending: Ending | None, error: BaseException | None) -> None:
        self._ended = True
        if error is not None:
            raise error
        assert ending is not None
        log.info("ends: %s", ending.value)
        if ending is Ending.ABANDONED:
            raise JobFailed(f"no master for {self._spec.master_grace_seconds:.0f} s")
        self.finished = ending is Ending.RELEASED

    def _drain(self, number: int, frame: object) -> None:
        """SIGTERM or Ctrl-C: leave at a step boundary; the second time at once."""
        self._draining += 1
        if self._draining > 1:
            os._exit(1)
        log.info("asked to leave: draining")
        self._member.drain()
        if self._member.orders.progress.activity is Activity.PREPARING:
            self._member.close()
            os._exit(0)  # nobody counts on this worker yet

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._drain)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and not self._ended:
            error = UsageError(
                "the loop was left before the job was over; job.stop() ends the job for all workers, and "
                "SIGTERM lets this one leave."
            )
            if not self._member.led:
                raise error
        if error is not None:
            self._handover.say(_Gone())
            self._member.failed(error)
            return
        self._member.close()


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
    spec = _job_flags()
    if batch_size is not None:
        # The engine counts in minibatches; one of the whole size leaves the splitting to the ring.
        spec = dataclasses.replace(spec, minibatch_size=batch_size, num_workers=1, min_workers=1)
    if epochs is not None:
        spec = dataclasses.replace(spec, num_epochs=epochs)
    order = Order(records, seed=spec.seed, shuffle=spec.shuffle)
    schedule = Schedule(order, epochs=spec.num_epochs, max_step=spec.max_step)
    plain = dict(values or {})
    return ElasticJob(spec, schedule, _State(state, plain), plain, save)


def _job_flags() -> JobSpec:
    flags = shlex.split(os.environ.get(FLAGS, ""))
    spec = parse_job("worker", flags).spec
    if not flags:  # nobody started this process: one worker, and the loop's own words count
        spec = dataclasses.replace(spec, num_workers=1)
    return spec


# ------------------------------------------------------------------------------- who leads this process


@dataclass
class _Member:
    """Ring and orders of this process, and what differs between a master, a launcher and nobody."""

    orders: Orders
    ring: ElasticRing
    control: Control | None = None

    @property
    def led(self) -> bool:
        return self.control is not None

    def meet_nobody(self) -> None:
        """A ring of one for the rehearsal; a launcher's ring rehearses together."""
        self.ring.join(Plan(0, (self.orders.seat,)), self.orders.seat.uid)

    def ready(self, message: messages.Ready) -> None:
        if self.control is not None:
            assert isinstance(self.ring, HorovodRing)
            self.control.watch(self.ring)
            self.control.ready(message)

    def drain(self) -> None:
        assert isinstance(self.orders, (Control, Unled))
        self.orders.drain()

    def close(self) -> None:
        if self.control is not None:
            self.control.close()
            self.control.wait_closed(LAST_WORDS_SECONDS)
        if isinstance(self.ring, FixedRing):
            self.ring.close()

    def failed(self, error: BaseException) -> None:
        """Tell the master, and end without the exit handlers of native libraries: one may wait for a peer."""
        if self.control is None:
            return
        story = "".join(traceback.format_exception(error))
        print(story, file=sys.stderr, flush=True)
        self.control.send(
            messages.Failed(isinstance(error, UsageError), f"{type(error).__name__}: {error}", story)
        )
        self.control.close()
        self.control.wait_closed(LAST_WORDS_SECONDS)
        _end(3 if isinstance(error, UsageError) else 1)


def _end(code: int) -> NoReturn:
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)


def _member(spec: JobSpec) -> _Member:
    if MASTER in os.environ:
        return _led(spec, os.environ[MASTER], int(os.environ[WORKER]))
    launcher = find_launcher()
    if launcher is None:
        _log(spec, "this process alone")
        return _Member(Unled(Plan(1, (Seat("alone", 0, "127.0.0.1"),)), 0), SoloRing())
    _log(spec, f"rank {launcher.rank}")
    seats = tuple(Seat(f"rank-{rank}", rank, "") for rank in range(launcher.size))
    ring = FixedRing()
    if ring.size != launcher.size:
        raise EdlError(
            f"{launcher.name} started {launcher.size} processes, but Horovod sees a ring of {ring.size}."
        )
    return _Member(Unled(Plan(1, seats), launcher.rank), ring)


def _led(spec: JobSpec, master: str, worker_id: int) -> _Member:
    _log(spec, f"worker {worker_id}")
    host = address_towards(master)
    seat = Seat(uuid.uuid4().hex[:12], worker_id, host)
    deadlines = Deadlines(spec.failure_detection_seconds)
    control = Control(
        master,
        os.environ.get(TOKEN, ""),
        seat,
        deadlines=deadlines,
        master_grace=spec.master_grace_seconds,
        certificate=os.environ.get("EDL_MASTER_CERTIFICATE", ""),
    )
    control.start()
    log.info("worker %d (pid %d, uid %s) on %s; master at %s", worker_id, os.getpid(), seat.uid, host, master)
    ring = HorovodRing(control.store.port, interface_of(host), deadlines.collective)
    return _Member(control, ring, control)


def _log(spec: JobSpec, who: str) -> None:
    """Unless the script configured logging itself."""
    logging.basicConfig(
        level=str(spec.log_level),
        format=f"%(asctime)s %(levelname)s [{who}] %(message)s",
        stream=sys.stdout,
    )


__all__ = ["ElasticJob", "Step", "join"]
