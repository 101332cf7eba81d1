"""A worker of an evaluation or prediction job: asks for tasks until there are none."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import keras
import numpy as np

from edl_allreduce import clock, faults
from edl_allreduce.contract import JOB_TOKEN
from edl_allreduce.core import protocol
from edl_allreduce.core.attendance.state import Leave, MasterGone
from edl_allreduce.core.health import Activity
from edl_allreduce.core.protocol import Plan, Seat
from edl_allreduce.core.status import metrics_line
from edl_allreduce.data import RecordSource
from edl_allreduce.errors import ModelError, UsageError
from edl_allreduce.spec import JobSpec, JobType
from edl_allreduce.storage.url import place
from edl_allreduce.worker.attendant import Attendant
from edl_allreduce.worker.checkpoint.fit import load_for_init
from edl_allreduce.worker.checkpoint.format import Array
from edl_allreduce.worker.keras import fingerprint
from edl_allreduce.worker.keras.evaluation import Evaluator
from edl_allreduce.worker.keras.pipeline import Parser
from edl_allreduce.worker.keras.predictions import PredictionFiles, as_predictions
from edl_allreduce.worker.keras.zoo import Mode, ModelDefinition
from edl_allreduce.worker.lone import LoneMaster
from edl_allreduce.worker.loop.orders import Ending
from edl_allreduce.worker.records import read_records, tell_left_out
from edl_allreduce.worker.start import session

log = logging.getLogger(__name__)


class Work(Protocol):
    """What is done with a task, and in the end."""

    def do(self, start: int, stop: int, number: int, between: Callable[[], None]) -> list[float]: ...

    def conclude(self, order: protocol.Conclude) -> tuple[dict[str, float], str]: ...


class TrainedModel:
    """A model with the weights of a checkpoint."""

    def __init__(
        self,
        definition: ModelDefinition,
        sample: Any,
        directory: str,
        send: Callable[[protocol.FromWorker], None],
    ) -> None:
        self.model = definition.model()
        if not isinstance(self.model, keras.Model):
            raise ModelError(f"{definition.path}: expected a keras.Model, got {type(self.model).__name__}")
        if not self.model.built:
            self.model(sample, training=False)
        self._directory = directory
        self._send = send
        self.step = -1
        self.load(directory)

    def state(self) -> list[Array]:
        return [v.numpy() for v in self.model.variables]

    def names(self) -> tuple[list[str], list[str]]:
        return [v.path for v in self.model.variables], []

    def load(self, directory: str) -> None:
        loaded = load_for_init(directory, self, self._send)
        for variable, array in zip(self.model.variables, loaded.model_arrays, strict=True):
            variable.assign(array)
        self.step = loaded.contents.step
        log.info("the model is that of %s", loaded.path)

    def want(self, step: int) -> None:
        """All workers of a job use the same checkpoint, also when a newer one appears meanwhile."""
        if step != self.step:
            self.load(str(place(self._directory) / f"version-{step}"))


class TaskWorker:
    """Pulls and does tasks."""

    def __init__(self, control: Attendant, model: TrainedModel, work: Work) -> None:
        self._control = control
        self._model = model
        self._work = work

    def run(self) -> Ending:
        while True:
            match self._control.next_task():
                case protocol.DoTask() as order:
                    self._do(order)
                case protocol.Conclude() as order:
                    metrics, path = self._work.conclude(order)
                    self._control.send(protocol.Concluded(metrics, path))
                case protocol.Evicted(reason):
                    log.warning("evicted: %s", reason)
                    return Ending.EVICTED
                case MasterGone():
                    log.error("the master is gone: ending")
                    return Ending.ABANDONED
                case Leave():
                    return Ending.LEFT
                case protocol.Release():
                    return Ending.RELEASED

    def _do(self, order: protocol.DoTask) -> None:
        progress = self._control.progress
        progress.activity, progress.step, progress.done = Activity.COMPUTING, order.number, 0
        began = clock.now()

        def between() -> None:
            faults.reach("task", task=order.number, attempt=order.attempt, done=progress.done)
            progress.done += 1

        self._model.want(order.version)
        sums = self._work.do(order.start, order.stop, order.number, between)
        progress.activity = Activity.IDLE
        log.info("task %d (records %d to %d, attempt %d) took %.2f s",
                 order.number, order.start, order.stop - 1, order.attempt, clock.now() - began)  # fmt: skip
        self._control.send(protocol.TaskDone(order.number, order.attempt, sums))


def prepare(spec: JobSpec, control: Attendant) -> TaskWorker:
    """Open the data, load the model, trace; then say that this worker is ready."""
    source, model, work = _open(spec, control.send, os.environ.get(JOB_TOKEN, ""))
    control.ready(
        protocol.Ready(
            step=model.step,
            has_state=True,
            fingerprint=source.fingerprint,
            total_steps=0,
            global_batch=0,
            records=len(source),
            model={
                **fingerprint.of_files(spec, session.definition_of(spec).path),
                **fingerprint.of_objects(source),
            },
        )
    )
    return TaskWorker(control, model, work)


def run_alone(spec: JobSpec) -> None:
    """The whole job in this process (`--distribution_strategy=Local`)."""
    lone = LoneMaster(Plan(1, (Seat("local", 0, "127.0.0.1"),)), 0, spec.max_bad_records)

    def tell(message: protocol.FromWorker) -> None:
        lone.send(message)
        lone.check()

    source, model, work = _open(spec, tell, str(os.getpid()))
    size = spec.minibatch_size * spec.num_minibatches_per_task
    sums: Any = 0.0
    numbers = range(-(-len(source) // size))
    for number in numbers:
        stop = min((number + 1) * size, len(source))
        sums = sums + np.array(work.do(number * size, stop, number, lambda: None), np.float64)
    order = protocol.Conclude([float(v) for v in np.atleast_1d(sums)], len(numbers), len(source))
    metrics, path = work.conclude(order)
    if metrics:
        print(metrics_line(protocol.Evaluated(model.step, metrics)))
    remarks = f"; {lone.account.remarks}" if lone.account.remarks else ""
    print(f"Succeeded: {len(source)} records{remarks}")
    if path:
        print(f"The predictions are in {path}")


def _open(
    spec: JobSpec, send: Callable[[protocol.FromWorker], None], run: str
) -> tuple[RecordSource, TrainedModel, Work]:
    session.set_threads(spec)
    definition = session.definition_of(spec)
    predicts = spec.job_type is JobType.PREDICTION_ONLY
    mode = Mode.PREDICTION if predicts else Mode.EVALUATION
    source = session.open_data(spec, spec.prediction_data if predicts else spec.validation_data)
    session.tell_damage(source, send)
    parser = Parser(definition.feed, mode, source.metadata)
    count = min(spec.minibatch_size, len(source))
    first = session.read_first(spec, source, range(count))
    features, _ = parser(first.records, first.count)
    model = TrainedModel(definition, features, spec.checkpoint_dir_for_init, send)
    work: Work
    if predicts:
        # Data and model are part of it, since a token may be used for several runs.
        same = repr((run, spec.job_name, source.fingerprint, spec.checkpoint_dir_for_init))
        own = hashlib.sha256(same.encode()).hexdigest()[:16]
        work = _Predicting(spec, definition, model.model, source, parser, own, send)
    else:
        work = _Evaluating(spec, definition, model.model, source, send)
    return source, model, work


class _Evaluating:
    """Sums of metrics; a task is a whole number of chunks, so the result does not depend on who did what."""

    def __init__(
        self,
        spec: JobSpec,
        definition: ModelDefinition,
        model: Any,
        source: RecordSource,
        send: Callable[[protocol.FromWorker], None],
    ) -> None:
        self._chunk = spec.minibatch_size
        self._evaluator = Evaluator(
            definition,
            model,
            source,
            chunk=self._chunk,
            bad_records_allowed=spec.max_bad_records,
            send=send,
        )

    def do(self, start: int, stop: int, number: int, between: Callable[[], None]) -> list[float]:
        chunks = range(start // self._chunk, -(-stop // self._chunk))
        return [float(v) for v in self._evaluator.measure(chunks, between)]

    def conclude(self, order: protocol.Conclude) -> tuple[dict[str, float], str]:
        return self._evaluator.conclude(np.array(order.sums, np.float64)), ""


class _Predicting:
    """Predictions of a task, as a file or through the model file's processor."""

    def __init__(
        self,
        spec: JobSpec,
        definition: ModelDefinition,
        model: Any,
        source: RecordSource,
        parser: Parser,
        run: str,
        send: Callable[[protocol.FromWorker], None],
    ) -> None:
        self._batch = spec.minibatch_size
        self._bad_allowed = spec.max_bad_records
        self._worker_id = spec.worker_id or 0
        self._model = model
        self._source = source
        self._parser = parser
        self._send = send
        self._files = PredictionFiles(Path(spec.output), run) if spec.output else None
        self._overwrite = spec.overwrite
        self._processor = definition.outputs_processor() if definition.outputs_processor else None
        if self._processor is not None and not callable(getattr(self._processor, "process", None)):
            raise ModelError(
                f"{definition.path}: {type(self._processor).__name__} has no process(predictions, worker_id)"
            )
        if self._processor is None and self._files is None:
            raise UsageError(
                f"where should predictions go? Give --output=DIR, or a PredictionOutputsProcessor in "
                f"{definition.path}"
            )
        if self._files is not None:
            self._files.begin(overwrite=spec.overwrite)

    def do(self, start: int, stop: int, number: int, between: Callable[[], None]) -> list[float]:
        batches: list[Any] = []
        left_out: list[int] = []
        for at in range(start, stop, self._batch):
            batch, bad = self._predict(range(at, min(at + self._batch, stop)))
            left_out += bad
            if batch is not None:
                batches.append(batch)
            between()
        if self._processor is not None:
            for batch in batches:
                self._processor.process(as_predictions(batch), self._worker_id)
        if self._files is not None:
            self._files.write(number, batches, left_out)
        return []

    def _predict(self, indices: range) -> tuple[Any, list[int]]:
        read = read_records(self._source, indices, bad_allowed=self._bad_allowed)
        tell_left_out(read, of="predictions", data="prediction data", send=self._send)
        missing = list(read.left_out)
        if not read.count:
            return None, missing
        features, _ = self._parser(read.records, read.count)
        return self._model.predict_on_batch(features), missing

    def conclude(self, order: protocol.Conclude) -> tuple[dict[str, float], str]:
        if self._files is None:
            return {}, ""
        self._files.publish(order.records, order.tasks, overwrite=self._overwrite)
        return {}, str(self._files.directory)
