"""The worker process: `python -m edl_allreduce.worker.main --worker_id=N --master_addr=HOST:PORT …`.

A master starts it with all flags; a person may leave most of them to the master that is already there.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, NoReturn

from edl_allreduce import faults, logs
from edl_allreduce.contract import (
    EXIT_EVICTED,
    EXIT_FAILED,
    EXIT_INVALID,
    EXIT_TERMINATED,
    LAST_WORDS_SECONDS,
)
from edl_allreduce.core import protocol, stories
from edl_allreduce.core.health import Activity
from edl_allreduce.errors import (
    CheckpointError,
    DataError,
    EdlError,
    ModelError,
    SetupError,
    StorageRefused,
    UsageError,
)
from edl_allreduce.spec import JobSpec, JobType, parse_job
from edl_allreduce.worker.attendant import Attendant
from edl_allreduce.worker.keras import pinned_imports
from edl_allreduce.worker.loop.orders import Ending
from edl_allreduce.worker.start import failure, signals
from edl_allreduce.worker.start.by_hand import complete, told_everything
from edl_allreduce.worker.start.launcher import find_launcher, launched_job, run_static
from edl_allreduce.worker.start.launching import become, connect
from edl_allreduce.worker.start.network import interface_of
from edl_allreduce.worker.start.tensorflow_import import import_tensorflow

if TYPE_CHECKING:
    from edl_allreduce.worker.loop.engine import Engine

log = logging.getLogger("edl_allreduce.worker")

PULLED = (JobType.EVALUATION_ONLY, JobType.PREDICTION_ONLY)
INVALID = (CheckpointError, ModelError, DataError, SetupError, StorageRefused, UsageError)


def main(argv: list[str] | None = None) -> NoReturn:
    """Run one worker and end the process with what came of it."""
    signals.block()
    try:
        code = start(sys.argv[1:] if argv is None else argv)
    except EdlError as error:
        print(f"elasticdl worker: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    end(code)


def start(argv: list[str]) -> int:
    """Find out who leads: a master, or a launcher's fixed ring."""
    parsed = parse_job("worker", argv)
    launcher = None if parsed.spec.master_addr else find_launcher()
    configure_logging(parsed.spec if launcher is None else launched_job(parsed, launcher))
    for notice in parsed.notices:
        log.warning("%s", notice)
    if parsed.spec.master_addr:
        spec = parsed.spec if told_everything(parsed) else complete(parsed)
        if spec.job_command:
            check_places(spec)
            become(spec)
        return run(spec)
    if launcher is None:
        raise UsageError(
            "--master_addr is missing: where is the master? Without one, start the ranks with "
            "`horovodrun -np 2 python -m edl_allreduce.worker.main …`, or one process with "
            "`elasticdl train --distribution_strategy=Local …`."
        )
    return run_static(launched_job(parsed, launcher), launcher)


def check_places(spec: JobSpec) -> None:
    """Imported late, since NumPy starts threads: signals must be blocked before."""
    from edl_allreduce.worker.start import preflight

    preflight.check_places(spec)


def configure_logging(spec: JobSpec) -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    logs.print_lines(str(spec.log_level), f"worker {spec.worker_id}", as_json=spec.logs_json)


def end(code: int) -> NoReturn:
    """End without the exit handlers of native libraries: one of them may wait for a peer that is gone."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run(spec: JobSpec) -> int:
    """Connect, prepare, train; returns the exit code."""
    control = connect(spec)
    seat = control.seat

    def drain() -> None:
        log.info("asked to leave: draining")
        control.drain()
        if control.progress.activity is Activity.PREPARING:
            control.close()
            told = control.wait_closed(LAST_WORDS_SECONDS)
            end(0 if told else EXIT_TERMINATED)  # nobody counts on this worker yet

    signals.on_termination(drain)
    control.start()
    log.info("worker %d (pid %d, uid %s) on %s; master at %s; arguments: %s", seat.worker_id, os.getpid(),
             seat.uid, seat.host, spec.master_addr, " ".join(sys.argv[1:]))  # fmt: skip
    try:
        faults.reach("prepare", worker=seat.worker_id)
        check_places(spec)
        # Everything heavy is imported here, so that signals and the master's stream are served meanwhile.
        try:
            import_tensorflow()
            from edl_allreduce.worker.start import tasks as pulled
            from edl_allreduce.worker.start.session import prepare
        except Exception as error:
            raise failure.cannot_load(error) from error
        for path in pinned_imports.install():
            text = f"model file {path} changed since the job began; it goes on with the old one"
            control.send(protocol.Note(protocol.NoteKind.EDITED, text, once=True))
        worker: Engine | pulled.TaskWorker
        if spec.job_type in PULLED:
            worker = pulled.prepare(spec, control)
        else:
            worker = prepare(spec, control, interface_of(seat.host))
        faults.reach("ready", worker=seat.worker_id)
        ending = worker.run()
    except (Exception, SystemExit) as error:  # noqa: BLE001  the last supervisor: what user code raised is told
        return _failed(spec, control, error)
    log.info("ends: %s", ending.value)
    control.close()
    told = control.wait_closed(LAST_WORDS_SECONDS)
    return exit_code(ending, told=told, draining=control.draining)


def exit_code(ending: Ending, *, told: bool, draining: bool) -> int:
    """`told`: the master heard its last words; `draining`: it was asked to leave, which is no failure of its
    own, whether or not there is a master."""
    match ending:
        case Ending.EVICTED:
            return EXIT_EVICTED
        case Ending.ABANDONED:
            return EXIT_TERMINATED if draining else EXIT_FAILED
        case Ending.LEFT:
            return 0 if told else EXIT_TERMINATED
        case Ending.RELEASED:
            return 0


def _failed(spec: JobSpec, control: Attendant, error: BaseException) -> int:
    invalid = isinstance(error, INVALID)
    log.error("%s", stories.whole(error))
    step = control.progress.step
    control.send(failure.report(error, invalid=invalid, step=step, whole=spec.full_traceback))
    control.close()
    control.wait_closed(LAST_WORDS_SECONDS)
    return EXIT_INVALID if invalid else EXIT_FAILED


if __name__ == "__main__":
    main()
