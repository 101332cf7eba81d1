"""`--distribution_strategy=Local`: the whole job in this process, without Horovod.

The same engine, trainer, data order, audit and result as in a ring; only the sum over the ring is left out.
"""

from __future__ import annotations

import os
import sys

from edl_allreduce import logs
from edl_allreduce.core import stories
from edl_allreduce.core.protocol import Plan, Seat
from edl_allreduce.errors import EdlError
from edl_allreduce.spec import JobSpec, JobType
from edl_allreduce.worker.lone import LoneMaster
from edl_allreduce.worker.start import signals
from edl_allreduce.worker.start.tensorflow_import import import_tensorflow


def run_single(spec: JobSpec) -> int:
    """Train here and now; returns the exit code."""
    signals.block()
    from edl_allreduce.worker.start.preflight import (
        check_local_job,  # NumPy's threads must not get the signals
    )

    check_local_job(spec)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    files = {"--log_file_path": spec.log_file_path}
    logs.configure(str(spec.log_level), "", files=files, to_terminal=True, as_json=spec.logs_json)
    try:
        return _run(spec)
    except (Exception, SystemExit) as error:  # the last supervisor: what user code raised is told
        story = stories.tell(error)
        if isinstance(error, EdlError) and not story.own and error.__cause__ is None:
            raise  # it says all there is to say
        text = stories.whole(error) if spec.full_traceback else story.text
        print(f"Failed:\n{text}", file=sys.stderr)
        return error.exit_code if isinstance(error, EdlError) else 1


def _run(spec: JobSpec) -> int:
    if spec.job_type in (JobType.EVALUATION_ONLY, JobType.PREDICTION_ONLY):
        import_tensorflow()
        from edl_allreduce.worker.start import tasks as pulled

        pulled.run_alone(spec)
        return 0
    lone = LoneMaster(
        Plan(1, (Seat("local", 0, "127.0.0.1"),)), 0, spec.max_bad_records, spec.verify_fingerprint
    )
    signals.on_termination(lone.stop)
    # TensorFlow comes after the signals are blocked, so that its threads do not get them.
    import_tensorflow()
    from edl_allreduce.worker.ring.solo import SoloRing
    from edl_allreduce.worker.start.session import prepare_alone

    engine = prepare_alone(spec, lone.attendant(), SoloRing())
    engine.run()
    return lone.verdict(engine.state.step)
