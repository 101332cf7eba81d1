"""A fixed ring without a master: `horovodrun -np 2 python -m edl_allreduce.worker.main …`, or mpirun.

The launcher starts the processes and says who is who. Data order, global batch, audit and result are those of
an elastic job; what is missing is the elasticity: when a rank is lost, the job is.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edl_allreduce.contract import EXIT_INTERRUPTED
from edl_allreduce.core.protocol import Plan, Seat
from edl_allreduce.errors import EdlError, SetupError, UsageError
from edl_allreduce.spec import JobSpec, ParsedJob
from edl_allreduce.spec.validate import too_few_parts
from edl_allreduce.worker.lone import LoneMaster
from edl_allreduce.worker.start import signals
from edl_allreduce.worker.start.tensorflow_import import import_tensorflow

if TYPE_CHECKING:
    from edl_allreduce.worker.ring.fixed import FixedRing

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Launcher:
    """Who started this process, and as which of how many."""

    name: str
    rank: int
    size: int


VARIABLES = {
    "horovodrun": ("HOROVOD_RANK", "HOROVOD_SIZE"),
    "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "mpiexec": ("PMI_RANK", "PMI_SIZE"),
}


def find_launcher(environ: Mapping[str, str] = os.environ) -> Launcher | None:
    """None when a person or a master started this process."""
    for name, (rank, size) in VARIABLES.items():
        if rank in environ and size in environ:
            return Launcher(name, int(environ[rank]), int(environ[size]))
    return None


def launched_job(parsed: ParsedJob, launcher: Launcher) -> JobSpec:
    """The job as this launcher runs it: as many workers as it started, unless the batch says otherwise."""
    for flag in ("model_def", "training_data"):
        if not getattr(parsed.spec, flag):
            raise UsageError(f"--{flag} is missing: without a master every rank needs all flags of the job.")
    workers = parsed.spec.num_workers if "num_workers" in parsed.given else launcher.size
    spec = dataclasses.replace(parsed.spec, worker_id=launcher.rank, num_workers=workers)
    if problem := too_few_parts(spec, launcher.size):
        raise UsageError(problem)
    return spec


def run_static(spec: JobSpec, launcher: Launcher) -> int:
    """Train in the launcher's ring; returns the exit code."""
    lone = LoneMaster(fixed_plan(launcher), launcher.rank, spec.max_bad_records, spec.verify_fingerprint)
    signals.on_termination(lone.stop)
    try:
        steps = _train(spec, lone, launcher)
    except EdlError as error:
        log.error("%s", error)
        return error.exit_code
    if launcher.rank == 0:
        return lone.verdict(steps)
    return EXIT_INTERRUPTED if lone.stopped else 0


def fixed_plan(launcher: Launcher) -> Plan:
    """The only ring there will be."""
    return Plan(1, tuple(Seat(f"rank-{rank}", rank, "") for rank in range(launcher.size)))


def fixed_ring(launcher: Launcher) -> FixedRing:
    """The launcher's ring, if Horovod really sees it."""
    from edl_allreduce.worker.ring.fixed import FixedRing

    ring = FixedRing()
    if (ring.rank, ring.size) != (launcher.rank, launcher.size):
        raise SetupError(
            f"{launcher.name} started {launcher.size} processes, but Horovod sees a ring of {ring.size}: "
            "each process would train alone. For mpirun Horovod must be built with the same MPI "
            "(`HOROVOD_WITH_MPI=1 scripts/setup`); horovodrun and `elasticdl train` need no MPI."
        )
    log.info("rank %d of %d, started by %s (pid %d)", ring.rank, ring.size, launcher.name, os.getpid())
    return ring


def _train(spec: JobSpec, lone: LoneMaster, launcher: Launcher) -> int:
    from edl_allreduce.worker.start.preflight import check_places

    check_places(spec)
    import_tensorflow()
    from edl_allreduce.worker.start.session import prepare_alone

    ring = fixed_ring(launcher)
    # The layout of PaddlePaddle's guide: the model of each epoch lies beside that of the end.
    spec = dataclasses.replace(spec, passes_dir=spec.passes_dir or spec.output)
    engine = prepare_alone(spec, lone.attendant(), ring)
    engine.run()
    lone.check()
    ring.close()
    return engine.state.step
