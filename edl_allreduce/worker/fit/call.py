"""`elastic.fit`, the public function."""

from __future__ import annotations

import dataclasses
import functools
import logging
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast

import keras

from edl_allreduce import files
from edl_allreduce.core.health import Activity
from edl_allreduce.core.schedule import Schedule
from edl_allreduce.data import RecordSource
from edl_allreduce.errors import UsageError
from edl_allreduce.spec import ElasticBatch, JobSpec
from edl_allreduce.worker.fit import callbacks as fit_callbacks
from edl_allreduce.worker.fit.callbacks import FitCallbacks, history_of
from edl_allreduce.worker.fit.data import Arrays, Labelled, Source, open_data
from edl_allreduce.worker.fit.evaluation import EpochEnd
from edl_allreduce.worker.fit.memory import Memory
from edl_allreduce.worker.fit.trainer import CompiledTrainer
from edl_allreduce.worker.keras import fingerprint
from edl_allreduce.worker.keras.pipeline import Parser, Pipeline
from edl_allreduce.worker.loop.assemble import Program
from edl_allreduce.worker.loop.engine import Engine
from edl_allreduce.worker.loop.orders import Progress
from edl_allreduce.worker.loop.steps import MicroBatch, Written
from edl_allreduce.worker.ring.base import Ring
from edl_allreduce.worker.script.part import Part, job_flags
from edl_allreduce.worker.script.turns import Over
from edl_allreduce.worker.start.session import bucket_mb, export

log = logging.getLogger("edl_allreduce.elastic")

DEFAULT_BATCH = 32
"""Of Keras, where no job says another."""

_ring: Ring | None = None
"""Of the last fit in this process."""


def rank() -> int:
    """This worker's place among the workers of `fit`; 0 for one of them at any time, and alone. Ranks change
    when workers come and go."""
    return _ring.rank if _ring is not None else 0


def fit(
    model: Any,
    data: Any,
    y: Any = None,
    *,
    batch_size: int | None = None,
    epochs: int | None = None,
    verbose: bool | int | str = "auto",
    callbacks: Sequence[Any] | None = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: bool = True,
    class_weight: Mapping[int, float] | None = None,
    sample_weight: Any = None,
    validation_batch_size: int | None = None,
    validation_freq: int = 1,
    save: str | Path | Callable[[], object] | None = None,
) -> Any:
    """Train a compiled Keras model as `model.fit` does, on all workers of the job; alone when there is none.

    data, y, sample_weight: arrays or structures of them; or a PyDataset; or an object with len() and
        [number] that gives (x, y) or (x, y, sample_weight) of one record.
    batch_size: records of one step over all workers; by default minibatch_size x num_workers of the job, and
        32 without one.
    epochs: passes over the data; by default --num_epochs of the job.
    save: where one worker saves the trained model, or a function that it calls; by default --output of the
        job. Code after `fit` runs on every worker.

    The other arguments are those of `model.fit`. Returns a keras.callbacks.History, the same on all workers.
    A worker that is asked to leave ends its process here.
    """
    _check(model)
    chosen = list(callbacks or ())
    fit_callbacks.check(chosen)
    spec = _spec(epochs, shuffle)
    source, validation = _sources(data, y, sample_weight, validation_split, validation_data)
    batch = _batch_size(spec, source, batch_size)
    order = source.order(seed=spec.seed, shuffle=spec.shuffle)
    schedule = Schedule(order, epochs=spec.num_epochs, max_step=spec.max_step)
    steps = -(-len(source) // batch)
    spec = dataclasses.replace(spec, evaluation_steps=steps)
    part = Part(spec)
    global _ring
    _ring = ring = part.worker.ring
    memory = Memory(chosen)
    observer = FitCallbacks(
        chosen,
        model,
        memory,
        records=len(source),
        steps=steps,
        epochs=spec.num_epochs,
        verbose=verbose not in (0, False),
        leads=lambda: ring.rank == 0,
        anybody=functools.partial(_anybody, ring, part.worker.orders.progress),
    )
    try:
        part.__enter__()
        part.worker.meet_nobody()
        trainer = CompiledTrainer(
            model,
            ring,
            memory,
            on_nan=spec.on_nan,
            bucket_mb=bucket_mb(spec, ring),
            compression=spec.gradient_compression,
        )
        trainer.at_the_end = observer.train_end
        parser = Labelled(class_weight)
        per_worker = -(-batch // max(1, spec.num_workers, ring.size))
        first = order.indices(schedule.span(0, min(per_worker, len(source))))
        trainer.build(MicroBatch(*parser(source.read(first), len(first)), len(first)))
        observer.begin()
        program = Program(
            trainer=trainer,
            schedule=schedule,
            open_feed=functools.partial(
                Pipeline,
                cast(RecordSource, source),
                schedule,
                cast(Parser, parser),
                minibatch=per_worker,
                bad_records_allowed=0,
            ),
            export=functools.partial(_export, spec, trainer, save),
            fingerprint=source.fingerprint,
            batch_size=batch,
            model=fingerprint.of_compiled(model, trainer.optimizer),
            evaluator=EpochEnd(
                trainer,
                observer,
                validation,
                chunk=_chunk(validation, validation_batch_size or per_worker),
                every=validation_freq,
            ),
            callbacks=observer,
        )
        _rehearse(part, ring, trainer, program.fingerprint)
        engine = part.assemble(program)
        observer.journal = lambda: engine.state.journal
        ended: SimpleQueue[Over] = SimpleQueue()
        part.start(program, engine, ended.put)
        part.over(ended.get())
    except BaseException as error:
        part.close(error)
        raise
    part.close(None)
    if not _complete(engine, schedule, model):
        _leave(part)
    trainer.conclude()
    return history_of(engine.state.journal, model, spec.num_epochs, steps)


def _check(model: Any) -> None:
    if not isinstance(model, keras.Model):
        raise UsageError(f"elastic.fit trains a keras.Model, got a {type(model).__name__}.")
    if not model.compiled or model.optimizer is None:
        raise UsageError("the model is not compiled: call model.compile(optimizer=…, loss=…) before fit.")


def _spec(epochs: int | None, shuffle: bool) -> JobSpec:
    spec = job_flags()
    if spec.elastic_batch is ElasticBatch.WORKER:
        raise UsageError(
            "elastic.fit keeps the batch of a step whatever the number of workers, so that the result is "
            "that of model.fit; leave --elastic_batch=worker out."
        )
    if _ring is not None and spec.master_addr:
        raise UsageError("a job trains one model once: call elastic.fit once in a script that it runs.")
    epochs = spec.num_epochs if epochs is None else epochs
    return dataclasses.replace(spec, num_epochs=epochs, shuffle=spec.shuffle and shuffle)


def _sources(data: Any, y: Any, weights: Any, split: float, validation: Any) -> tuple[Source, Source | None]:
    source = open_data(data, y, weights)
    if validation is data and y is None and weights is None:
        return source, source  # what guards an object from two threads at once is in its source
    if validation is not None:
        return source, open_data(validation)
    if not split:
        return source, None
    if not isinstance(source, Arrays):
        raise UsageError("validation_split needs arrays; give validation_data instead.")
    return source.split(split)


def _batch_size(spec: JobSpec, source: Source, given: int | None) -> int:
    if source.item:
        if given:
            raise UsageError("batch_size: the items of a PyDataset are the batches; leave it out.")
        return source.item
    if given is not None and given < 1:
        raise UsageError(f"batch_size must be at least 1, got {given}.")
    return given or (spec.global_batch_size if spec.master_addr else DEFAULT_BATCH)


def _chunk(validation: Source | None, batch: int) -> int:
    return validation.item or batch if validation is not None else batch


def _anybody(ring: Ring, progress: Progress, wish: bool) -> bool:
    """Whether any rank has this wish. All ask together."""
    progress.activity = Activity.REDUCING
    rows = ring.gather([wish])
    progress.activity = Activity.COMPUTING
    return any(wishes for (wishes,) in rows)


def _rehearse(part: Part, ring: Ring, trainer: CompiledTrainer, data: str) -> None:
    """What a re-form calls, called once: the others will not wait until it is loaded."""
    if not part.worker.led:
        digests = {row[0] for row in ring.gather([zlib.crc32(data.encode())])}
        if len(digests) > 1:
            raise UsageError("the ranks were given different data; split and shuffle it with a fixed seed.")
    else:
        ring.gather([0])
        trainer.restore(ring.share_state(trainer.state(), root=0, takers=[0]))
    ring.leave()


def _export(
    spec: JobSpec, trainer: CompiledTrainer, save: str | Path | Callable[[], object] | None
) -> Written:
    trainer.conclude()
    if save is None:
        return export(spec, trainer)
    if callable(save):
        return Written(str(save() or ""))
    target = Path(save)
    target.parent.mkdir(parents=True, exist_ok=True)
    with files.drafted(target) as draft:
        trainer.model.save(draft)
    return Written(str(target))


def _complete(engine: Engine, schedule: Schedule, model: Any) -> bool:
    state = engine.state
    return bool(state.journal.halted) or schedule.finished(*state.start_point) or bool(model.stop_training)


def _leave(part: Part) -> None:
    """The model is not trained to its end here: what the script would do with it must not happen."""
    if not part.worker.led and part.asked_to_leave:
        raise KeyboardInterrupt
    log.info("this worker's part is over before the training is: the script ends here")
    sys.exit(part.exit_code)
