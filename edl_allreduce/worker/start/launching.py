"""How a worker begins: it connects, or becomes the user's own script (`--job_command`), which connects."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import uuid
from pathlib import Path

from edl_allreduce.contract import JOB_FLAGS, JOB_TOKEN, MASTER_CERTIFICATE, POD_IP, TENSORFLOW_THREADS
from edl_allreduce.core.deadlines import Deadlines
from edl_allreduce.core.protocol import Seat
from edl_allreduce.errors import SetupError
from edl_allreduce.rpc.client import WorkerStream
from edl_allreduce.spec import JobSpec, to_argv
from edl_allreduce.worker.attendant import Attendant
from edl_allreduce.worker.start.network import address_towards
from edl_allreduce.worker.start.signals import TERMINATION


def environment(spec: JobSpec) -> dict[str, str]:
    """How the script learns which job it is part of."""
    threads = str(spec.threads)
    return {
        # Workers that share a machine must not each take all of its cores; what the user set counts.
        **{name: os.environ.get(name, threads) for name in TENSORFLOW_THREADS},
        JOB_FLAGS: shlex.join(to_argv(spec, "worker")),
        # `python` in the command is the Python that runs this job.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        # What a script prints belongs in the log at once.
        "PYTHONUNBUFFERED": "1",
    }


def become(spec: JobSpec) -> None:
    """Replace this process by the command; it keeps the pid. Returns never, or raises."""
    words = shlex.split(spec.job_command)
    os.environ.update(environment(spec))
    # A mask survives exec: the script would never hear SIGTERM.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, TERMINATION)
    try:
        os.execvp(words[0], words)
    except OSError as error:
        raise SetupError(
            f"--job_command={spec.job_command}: {words[0]} cannot be started: {error}"
        ) from error


def connect(spec: JobSpec) -> Attendant:
    """A connection to the master that is not open yet; where this worker is, the pod or the route tells."""
    assert spec.worker_id is not None
    host = os.environ.get(POD_IP) or address_towards(spec.master_addr)
    token, certificate = os.environ.get(JOB_TOKEN, ""), os.environ.get(MASTER_CERTIFICATE, "")
    return Attendant(
        lambda hello: WorkerStream(spec.master_addr, token, hello, certificate),
        Seat(uuid.uuid4().hex[:12], spec.worker_id, host),
        deadlines=Deadlines(spec.failure_detection_seconds),
        master_grace=spec.master_grace_seconds,
        address=spec.master_addr,
    )
