"""The one place where a loop is put together: for model files and own loops, with a master, a launcher or
alone, and in tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from edl_allreduce.core import protocol
from edl_allreduce.core.schedule import Schedule
from edl_allreduce.spec import ElasticBatch, JobSpec
from edl_allreduce.worker.checkpoint.format import JobIdentity
from edl_allreduce.worker.checkpoint.writer import Checkpoints
from edl_allreduce.worker.loop.diary import Diary
from edl_allreduce.worker.loop.engine import Engine
from edl_allreduce.worker.loop.observers import DrawsCurves, NoCallbacks, NoCurves, ObservesSteps
from edl_allreduce.worker.loop.orders import Orders
from edl_allreduce.worker.loop.settings import BatchSize, LoopSettings
from edl_allreduce.worker.loop.steps import Evaluates, OpensFeed, Trains, Written
from edl_allreduce.worker.ring.base import Ring


@dataclass(frozen=True)
class Program:
    """What is trained, whoever wrote it: a model file with its data, or a user's own loop."""

    trainer: Trains
    schedule: Schedule
    open_feed: OpensFeed
    export: Callable[[], Written]
    fingerprint: str
    """Of the data; a position means the same records where it is the same."""
    batch_size: int | None = None
    """Records of a step, where the program says it itself instead of the flags."""
    model: dict[str, str] = field(default_factory=dict)
    """What else must be the same on all workers."""
    bits: dict[str, str] = field(default_factory=dict)
    """Where all must come to the same bits: what decides that, on workers and in checkpoints."""
    lost_records: int = 0
    evaluator: Evaluates | None = None
    callbacks: ObservesSteps = field(default_factory=NoCallbacks)
    curves: DrawsCurves = field(default_factory=NoCurves)
    save_pass: Callable[[int], None] | None = None


def assemble(
    spec: JobSpec, program: Program, orders: Orders, ring: Ring, *, shares_bad: bool = False
) -> Engine:
    """The loop of one worker. `shares_bad`: no master counts bad records, so ranks tell each other."""
    seat = orders.seat
    return Engine(
        settings=LoopSettings(
            batch=batch_of(spec, program.batch_size),
            log_loss_steps=spec.log_loss_steps,
            audit_dir=spec.audit_dir,
            shares_bad=shares_bad,
            job_name=spec.job_name,
            lost_records=program.lost_records,
            evaluation_steps=spec.evaluation_steps,
            on_nan=spec.on_nan,
            virtual_ranks=spec.virtual_ranks,
        ),
        orders=orders,
        ring=ring,
        trainer=program.trainer,
        schedule=program.schedule,
        diary=Diary(spec.audit_dir, seat.worker_id, seat.uid, orders.send, spec.job_name),
        open_feed=program.open_feed,
        export=program.export,
        checkpoints=_checkpoints(spec, program, orders),
        evaluator=program.evaluator,
        callbacks=program.callbacks,
        curves=program.curves,
        save_pass=program.save_pass,
    )


def batch_of(spec: JobSpec, given: int | None) -> BatchSize:
    """`given`: by the program itself; it is then also what one worker takes with --elastic_batch=worker."""
    per_worker = spec.elastic_batch is ElasticBatch.WORKER
    return BatchSize(
        global_batch=given or spec.global_batch_size,
        per_worker=(given or spec.minibatch_size) if per_worker else 0,
    )


def ready_message(spec: JobSpec, program: Program, engine: Engine) -> protocol.Ready:
    """What the master must know of a worker that is prepared."""
    batch = engine.settings.batch.global_batch
    return protocol.Ready(
        step=0,
        has_state=False,
        fingerprint=f"{program.fingerprint}-{spec.seed}-{spec.shuffle:d}",
        total_steps=program.schedule.steps(batch),
        global_batch=batch,
        model={**program.model, **program.bits},
        length=engine.settings.length(program.schedule),
    )


def _checkpoints(spec: JobSpec, program: Program, orders: Orders) -> Checkpoints | None:
    """With --checkpoint_dir alone a checkpoint is written when the job stops or ends."""
    if not spec.checkpoints:
        return None
    records = program.schedule.order.records
    return Checkpoints(
        spec.checkpoints,
        program.trainer,
        JobIdentity(spec.job_name, spec.seed, spec.shuffle, records, program.fingerprint, program.bits),
        every=spec.checkpoint_steps,
        keep=spec.keep_checkpoint_max,
        send=orders.send,
    )
