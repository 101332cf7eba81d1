"""Preparations of a worker: everything slow happens here, before the ring waits for it."""

from __future__ import annotations

import functools
import logging
import math
import os
import traceback
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from edl_allreduce import clock
from edl_allreduce.contract import JOB_TOKEN
from edl_allreduce.core import protocol
from edl_allreduce.core.deadlines import Deadlines
from edl_allreduce.core.protocol import Plan
from edl_allreduce.core.schedule import Order, Schedule
from edl_allreduce.data import RecordSource, open_source
from edl_allreduce.errors import DataError, EdlError, ModelError, SetupError
from edl_allreduce.spec import JobSpec, MixedPrecision, job_directory
from edl_allreduce.storage.url import is_url
from edl_allreduce.worker.attendant import Attendant
from edl_allreduce.worker.checkpoint.fit import load_for_init
from edl_allreduce.worker.keras import fingerprint, hparams
from edl_allreduce.worker.keras.callbacks import Callbacks
from edl_allreduce.worker.keras.evaluation import Evaluator
from edl_allreduce.worker.keras.export import write_model, write_pass
from edl_allreduce.worker.keras.pipeline import Parser, Pipeline, check_data
from edl_allreduce.worker.keras.reader import open_custom
from edl_allreduce.worker.keras.reproducible import ReproducibleTrainer
from edl_allreduce.worker.keras.summaries import Summaries
from edl_allreduce.worker.keras.trainer import Trainer
from edl_allreduce.worker.keras.zoo import Mode, ModelDefinition, load_definition
from edl_allreduce.worker.loop.assemble import Program, assemble, ready_message
from edl_allreduce.worker.loop.engine import Engine
from edl_allreduce.worker.loop.orders import Orders
from edl_allreduce.worker.loop.steps import MicroBatch, Written
from edl_allreduce.worker.records import GoodRecords, read_records
from edl_allreduce.worker.ring.base import Ring
from edl_allreduce.worker.ring.horovod import HorovodRing
from edl_allreduce.worker.ring.solo import SoloRing

log = logging.getLogger(__name__)


def prepare(spec: JobSpec, control: Attendant, interface: str) -> Engine:
    """Import, build, trace and warm up in a world of one; then say that this worker is ready."""
    began = clock.now()
    set_threads(spec)
    timeout = Deadlines(spec.failure_detection_seconds).collective
    ring = HorovodRing(control.store.port, interface, timeout, os.environ.get(JOB_TOKEN, ""))
    ring.join(Plan(0, (control.seat,)), control.seat.uid)
    program = open_program(spec, ring, control)
    # What a re-form calls, called once: the others will not wait until it is loaded.
    ring.gather([0])
    program.trainer.restore(ring.share_state(program.trainer.state(), root=0, takers=[0]))
    ring.leave()
    engine = assemble(spec, program, control, ring)
    engine.begin_from_checkpoint()
    control.watch(ring)
    records = program.schedule.order.records
    log.info("ready after %.1f s: %d records, step traced", clock.now() - began, records)
    control.ready(ready_message(spec, program, engine))
    return engine


def prepare_alone(spec: JobSpec, control: Attendant, ring: Ring) -> Engine:
    """The same where the master is in this process (`lone`): the ring is there already."""
    set_threads(spec)
    if spec.reproducible:
        # Before the model is built, whose first steps are made on this ring: ranks that differ would not
        # even agree on the length of what they sum.
        refuse_other_bits(ring, fingerprint.of_bits(spec, probe=""))
    program = open_program(spec, ring, control)
    refuse_other_bits(ring, program.bits)
    shares_bad = spec.max_bad_records > 0 and ring.size > 1
    engine = assemble(spec, program, control, ring, shares_bad=shares_bad)
    control.watch(ring)
    control.ready(ready_message(spec, program, engine))
    return engine


def refuse_other_bits(ring: Ring, bits: Mapping[str, str]) -> None:
    """Of a fixed ring, whose ranks no master compares before they train."""
    table = ring.gather([zlib.crc32(value.encode()) for value in bits.values()]) if bits else []
    differing = [name for place, name in enumerate(bits) if len({row[place] for row in table}) > 1]
    if differing:
        raise SetupError(
            "the ranks would compute different bits, which --reproducible does not allow; they differ in: "
            f"{', '.join(differing)}. Start all of them on the same kind of machine with the same software."
        )


def open_program(spec: JobSpec, ring: Ring, orders: Orders) -> Program:
    """A model file and its data, traced and ready to train."""
    source, schedule = open_training_data(spec)
    tell_damage(source, orders.send)
    trainer, parser = build_trainer(spec, ring, source, schedule, orders.send)
    if isinstance(trainer, ReproducibleTrainer):
        trainer.user_code = orders.progress.user_code
    for text in trainer.notices:  # what people should know about how their model is trained
        orders.send(protocol.Note(protocol.NoteKind.NOTICE, text, once=True))
    return Program(
        trainer=trainer,
        schedule=schedule,
        open_feed=functools.partial(
            Pipeline,
            source,
            schedule,
            parser,
            minibatch=spec.micro_batch,
            bad_records_allowed=spec.max_bad_records,
            virtual=spec.virtual_ranks,
        ),
        export=functools.partial(export, spec, trainer),
        fingerprint=source.fingerprint,
        # Before a checkpoint changes what the model file says, such as the rate of learning.
        model={
            **fingerprint.of_model(spec, definition_of(spec).path, trainer.model, trainer.optimizer),
            **fingerprint.of_objects(source),
        },
        bits=fingerprint.of_bits(spec, trainer.probe) if isinstance(trainer, ReproducibleTrainer) else {},
        lost_records=getattr(source, "lost_records", 0),
        evaluator=open_evaluator(spec, trainer, orders),
        callbacks=callbacks_of(spec),
        curves=Summaries(spec.tensorboard_log_dir, orders.send, functools.partial(about, spec, trainer)),
        save_pass=functools.partial(write_pass, trainer.model, spec.passes_dir) if spec.passes_dir else None,
    )


def about(spec: JobSpec, trainer: Trainer) -> list[Any]:
    """For TensorBoard: the flags of the job, and its model."""
    begun = hparams.session(hparams.hparams_of(spec), spec.job_name, clock.wall())
    model = hparams.graph(trainer.model)
    return [begun] if model is None else [begun, model]


def set_threads(spec: JobSpec) -> None:
    """Workers that share a machine must not each take all of its cores."""
    threads = spec.threads
    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(max(2, threads))
    except RuntimeError:
        log.debug("TensorFlow was used in this process before; its threads stay as they are")
    if spec.reproducible:
        tf.config.experimental.enable_op_determinism()


@functools.cache
def definition_of(spec: JobSpec) -> ModelDefinition:
    """The model file, imported once. A policy of the flags wins over one that the file sets."""
    definition = load_definition(spec)
    if spec.mixed_precision is not MixedPrecision.FROM_FILE:
        keras.config.set_dtype_policy(spec.mixed_precision.value)
    return definition


@functools.cache
def callbacks_of(spec: JobSpec) -> Callbacks:
    definition = definition_of(spec)
    made = definition.callbacks() if definition.callbacks is not None else []
    if not isinstance(made, list | tuple):
        raise ModelError(f"{definition.path}: callbacks() must return a list, got {type(made).__name__}")
    return Callbacks(made, str(definition.path))


def open_data(spec: JobSpec, path: str) -> RecordSource:
    """The records at `path`, through the model file's own reader where it has one."""
    params = spec.typed.data_reader_params
    reader = definition_of(spec).data_reader
    if reader is not None:
        return open_custom(reader, path, params)
    return open_source(path, params=params, allow_truncated=spec.max_bad_records > 0)


def read_first(spec: JobSpec, source: RecordSource, indices: Sequence[int]) -> GoodRecords:
    """Some records to build the model with."""
    read = read_records(source, indices, bad_allowed=spec.max_bad_records)
    if read.problems and not read.count:
        raise DataError(f"none of the first {len(indices)} records can be read: {read.problems[0]}")
    return read


def tell_damage(source: RecordSource, send: Callable[[protocol.FromWorker], None]) -> None:
    """Parts of files that nobody can read are known when the data is opened, and told before it is used."""
    for text in getattr(source, "damage", ()):
        log.warning("%s", text)
        send(protocol.Note(protocol.NoteKind.WARNING, text, once=True))


def open_training_data(spec: JobSpec) -> tuple[RecordSource, Schedule]:
    source = open_data(spec, spec.training_data)
    check_data(source)
    order = Order(len(source), seed=spec.seed, shuffle=spec.shuffle)
    limits = [limit for limit in (spec.max_step, callbacks_of(spec).max_step) if limit]
    return source, Schedule(order, epochs=spec.num_epochs, max_step=min(limits, default=0))


def open_evaluator(spec: JobSpec, trainer: Trainer, orders: Orders) -> Evaluator | None:
    """With --validation_data: metrics while training, or at its end."""
    if not spec.validation_data:
        return None
    return Evaluator(
        definition_of(spec),
        trainer.model,
        open_data(spec, spec.validation_data),
        chunk=spec.micro_batch,
        bad_records_allowed=spec.max_bad_records,
        send=orders.send,
    )


def build_trainer(
    spec: JobSpec,
    ring: Ring,
    source: RecordSource,
    schedule: Schedule,
    send: Callable[[protocol.FromWorker], None] = lambda message: None,
) -> tuple[Trainer, Parser]:
    """The model, traced on the first records of the data."""
    definition = definition_of(spec)
    parser = Parser(definition.feed, Mode.TRAINING, source.metadata, refuses_chance=spec.reproducible)
    trainer = make_trainer(spec, definition, ring)
    first = schedule.order.indices(schedule.span(0, min(spec.micro_batch, len(source))))
    read = read_first(spec, source, first)
    try:
        trainer.build(MicroBatch(*parser(read.records, read.count), read.count))
    except (EdlError, OSError):
        raise
    except Exception as error:
        # Every worker does the same with the same records: none would fare better.
        raise ModelError(
            f"{definition.path}: the step could not be traced on the first {read.count} records.\n"
            f"{traceback.format_exc()}"
        ) from error
    params = {"batch_size": spec.minibatch_size, "epochs": spec.num_epochs, "saved_model_path": spec.output}
    callbacks = callbacks_of(spec)
    callbacks.attach(trainer.model, trainer.optimizer, params)
    if callbacks.restores_best:
        trainer.keep_best()
        callbacks.on_best = trainer.keep_best
    if spec.checkpoint_dir_for_init:
        start = load_for_init(spec.checkpoint_dir_for_init, trainer, send)
        trainer.restore_model(start.model_arrays)
        log.info("begins with the model of %s", start.path)
    return trainer, parser


def make_trainer(spec: JobSpec, definition: ModelDefinition, ring: Ring) -> Trainer:
    if not spec.reproducible:
        return Trainer(
            definition,
            ring,
            spec.seed,
            on_nan=spec.on_nan,
            bucket_mb=bucket_mb(spec, ring),
            compression=spec.gradient_compression,
        )
    count = spec.virtual_ranks
    return ReproducibleTrainer(definition, ring, spec.seed, virtual_ranks=count, on_nan=spec.on_nan)


def bucket_mb(spec: JobSpec, ring: Ring) -> float:
    """Alone there is nothing to sum, and so nothing to begin early."""
    return math.inf if isinstance(ring, SoloRing) else spec.bucket_mb


SPARE = (Path("/var/tmp"), Path("/tmp"))
"""Not $TMPDIR: a local worker's own goes with the worker."""


def export(spec: JobSpec, trainer: Trainer) -> Written:
    """Write the trained model to --output, or wherever there is room."""
    trainer.conclude()
    if not spec.output:
        return Written("")
    return write_model(trainer.model, spec.output, _spare(spec))


def _spare(spec: JobSpec) -> list[Path]:
    """Where a model may go that has no room in --output."""
    places = [Path(spec.checkpoints)] if spec.checkpoints and not is_url(spec.checkpoints) else []
    with suppress(RuntimeError):  # a user without a home has no such directory
        places.append(job_directory(spec))
    return [*places, *SPARE]
