"""A local job in the background: in a session of its own, it goes on when whoever started it is gone."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

from edl_allreduce import clock
from edl_allreduce.cluster.registry import EVENTS, LocalJobFiles
from edl_allreduce.errors import JobFailed, UsageError
from edl_allreduce.spec import Command, JobSpec, job_directory, to_argv

STDOUT = "stdout.log"
POLL_SECONDS = 0.1
"""Between two looks whether the master listens: what a person takes for at once."""
START_SECONDS = 60.0
"""How long a master may take until it listens: seconds, on a machine that is very busy."""


def start(spec: JobSpec, command: Command = Command.TRAIN) -> tuple[LocalJobFiles, subprocess.Popen[bytes]]:
    """Start the job; returns when its master listens, raises what it said when it does not."""
    spec = dataclasses.replace(spec, detach=False)
    files = LocalJobFiles(job_directory(spec))
    files.make_room()
    if files.running() is not None:
        raise UsageError(f"a job named {files.name} is running already; attach to it or stop it first.")
    if files.abandoned() is None:  # of an earlier job: nobody must begin with it
        (files.directory / EVENTS).unlink(missing_ok=True)
    output = files.directory / STDOUT
    with output.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "edl_allreduce.cli", str(command), *to_argv(spec, command)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=dict(os.environ),
            start_new_session=True,
        )
    _wait_for_master(files, process, output)
    return files, process


def _wait_for_master(files: LocalJobFiles, process: subprocess.Popen[bytes], output: Path) -> None:
    for _ in clock.polls(POLL_SECONDS, within=START_SECONDS):
        address = files.address()
        if address is not None and address.pid == process.pid:
            return
        code = process.poll()
        if code is not None:
            said = output.read_text(errors="replace").strip()
            kind = UsageError if code == UsageError.exit_code else JobFailed
            raise kind(f"the job did not start:\n{said}")
    process.kill()
    raise JobFailed(f"the master did not listen within {START_SECONDS:.0f} s; see {output}")
