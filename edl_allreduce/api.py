"""Jobs from Python, for notebooks and scripts: submit, watch, scale, wait.

    from edl_allreduce.api import submit

    job = submit(job_name="digits", model_zoo="model_zoo", model_def="digits.mlp.custom_model",
                 training_data="data/train", num_workers=2, output="model")
    for event in job.events():
        print(event.kind, event.text)
    print(job.wait().path)

The job runs in processes of its own: it goes on when the notebook's kernel ends, and `attach` finds it again.
"""

from __future__ import annotations

import inspect
import math
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Unpack

from edl_allreduce import clock
from edl_allreduce.cluster.choose import Where, where
from edl_allreduce.cluster.detached import start
from edl_allreduce.cluster.known import running_address
from edl_allreduce.cluster.registry import LocalJobFiles, find_job
from edl_allreduce.cluster.shipping import ship
from edl_allreduce.core.protocol import Ask, Command, Scale, StopJob
from edl_allreduce.core.status import EventRecord, JobStatus
from edl_allreduce.errors import JobFailed, UsageError
from edl_allreduce.rpc.client import command
from edl_allreduce.spec import JobSpec, job_directory, parse_job, to_argv
from edl_allreduce.spec.flag_types import SHIPPED
from edl_allreduce.spec.submit_flags import TrainFlags
from edl_allreduce.worker.start.preflight import check_local_job

__all__ = ["EventRecord", "Job", "JobFailed", "Status", "attach", "submit"]

Status = JobStatus
POLL_SECONDS = 0.1
"""Between two looks at the job's files: what a person takes for at once."""
SUCCEEDED = "Succeeded"
SHIPPED_FILES = "shipped"
"""In the job's directory: the model file made of what a notebook gave."""


class Job:
    """A local job. Every method asks the job itself, so several of these may watch the same one."""

    def __init__(self, files: LocalJobFiles, process: subprocess.Popen[bytes] | None = None) -> None:
        self._files = files
        self._process = process

    def __repr__(self) -> str:
        return f"Job({self.name!r}, {'running' if self.running else 'over'})"

    @property
    def name(self) -> str:
        return self._files.name

    @property
    def directory(self) -> Path:
        """Where its events and logs are."""
        return self._files.directory

    @property
    def running(self) -> bool:
        return self._files.running() is not None

    def status(self) -> Status:
        """The job as it is now, or as it was when it ended."""
        if self._files.running() is not None:
            return self._ask(Ask())
        return self._result()

    def scale(self, num_workers: int) -> Status:
        """Change the number of workers while the job trains."""
        return self._ask(Scale(num_workers))

    def stop(self) -> Status:
        """Stop at a step boundary, and wait until that is done."""
        self._ask(StopJob("asked through the Python API"))
        self._until_over(None)
        return self._result()

    def events(self, *, follow: bool = True) -> Iterator[EventRecord]:
        """What happened and happens, one by one; ends with the job, or at once with `follow=False`."""
        seen = 0
        for _ in clock.polls(POLL_SECONDS):
            running = follow and self.running
            for event in self._files.events()[seen:]:
                seen += 1
                yield event
            if not running:
                return

    def logs(self, worker: int) -> str:
        """What a worker printed so far."""
        return (self.directory / "logs" / f"worker-{worker}.log").read_text(errors="replace")

    def wait(self, timeout: float | None = None) -> Status:
        """Until the job is over. `path` of the answer is the trained model.

        Raises JobFailed with the job's own reason when it did not succeed, TimeoutError when it still runs.
        """
        self._until_over(timeout)
        result = self._result()
        if result.phase != SUCCEEDED:
            raise JobFailed(f"job {self.name}: {result.phase}: {result.reason}")
        return result

    def _until_over(self, timeout: float | None) -> None:
        for _ in clock.polls(POLL_SECONDS, within=math.inf if timeout is None else timeout):
            if not self.running:
                break
        else:
            raise TimeoutError(f"job {self.name} still runs after {timeout:.0f} s")
        if self._process is not None:
            self._process.wait()

    def _ask(self, message: Command) -> Status:
        address = running_address(self._files)
        return command(address.address, address.token, message)

    def _result(self) -> Status:
        result = self._files.result()
        if result is None:
            running_address(self._files)  # says why there is none
            raise JobFailed(f"job {self.name} still runs")
        return result


def attach(job_name: str = "", *, job_dir: str = "") -> Job:
    """A job that runs or ran on this machine, by name or directory."""
    return Job(find_job(job_name, job_dir))


def submit(spec: JobSpec | None = None, /, **flags: Unpack[TrainFlags]) -> Job:
    """Start a training job on this machine; takes the flags of `elasticdl train` by name, or a JobSpec.

    Where a flag names a function of the model file (model_def, loss, optimizer, feed, eval_metrics_fn,
    callbacks, custom_data_reader) the function itself may be given, and a Keras model as model_def; what it
    was compiled with counts then unless loss and optimizer are given. They are written to a file of the job.

    Returns when the master listens. Wrong flags raise UsageError as on the command line.
    """
    given: dict[str, Any] = {**(_given(spec) if spec is not None else {}), **flags}
    given |= _shipped(given)
    argv = [f"--{name}={_text(value)}" for name, value in given.items()]
    checked = parse_job("train", argv).spec
    if where(checked) is Where.KUBERNETES:
        raise UsageError("image_name: jobs on Kubernetes are submitted with `elasticdl train`.")
    check_local_job(checked)
    return Job(*start(checked))


submit.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # what a notebook completes
    [
        inspect.Parameter("spec", inspect.Parameter.POSITIONAL_ONLY, default=None),
        *(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=getattr(JobSpec, name, ""))
            for name in TrainFlags.__annotations__
        ),
    ],
    return_annotation=Job,
)


def _shipped(given: dict[str, Any]) -> dict[str, str]:
    """What the flags are once functions and models are in a file."""
    objects = {name: given[name] for name in SHIPPED if name in given and not isinstance(given[name], str)}
    if not objects:
        return {}
    if "model_def" not in objects:
        raise UsageError(
            f"{', '.join(objects)}: functions can be given together with a function or a model as model_def; "
            "beside a model file give their names."
        )
    others = {name: value for name, value in given.items() if name not in objects} | {"model_def": "a.b"}
    checked = parse_job("train", [f"--{name}={_text(value)}" for name, value in others.items()]).spec
    files = LocalJobFiles(job_directory(checked))
    files.make_room()
    if files.running() is not None:
        raise UsageError(f"a job named {files.name} is running already; attach to it or stop it first.")
    return ship(objects, files.directory / SHIPPED_FILES)


def _given(spec: JobSpec) -> dict[str, str]:
    pairs = (word.removeprefix("--").split("=", 1) for word in to_argv(spec, "train"))
    return {name: value for name, value in pairs}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
