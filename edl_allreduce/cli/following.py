"""`elasticdl train --image_name=… --follow`: the live table of a job on Kubernetes until it is over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from edl_allreduce import clock, outside
from edl_allreduce.cli.events import print_new
from edl_allreduce.cluster.choose import find_job
from edl_allreduce.cluster.known import KnownJob
from edl_allreduce.core.protocol import Ask
from edl_allreduce.core.status import JobStatus
from edl_allreduce.errors import ClusterUnreachable, EdlError
from edl_allreduce.master.display import can_draw
from edl_allreduce.master.picture import render
from edl_allreduce.master.report import Told, next_line
from edl_allreduce.spec import JobSpec

REFRESH_SECONDS = 0.5
FAILED = "Failed"


def follow(spec: JobSpec) -> int:
    """Returns what `elasticdl train` should: 0 when the job succeeded."""
    forced = spec.force_use_kube_config_file
    job = find_job(spec.job_name, namespace=spec.namespace, force_kubeconfig=forced)
    console = outside.console()
    if can_draw(console):
        with Live(_waiting(job), console=console, auto_refresh=False) as live:
            last = None
            for _ in _until_over(job):
                last = _draw(job, live) or last
            if last is not None:  # in the place of "no answer": the master has just ended
                live.update(last, refresh=True)
    else:  # a log that is read later: what happened, line by line
        seen, absence, told = 0, "", Told()
        for _ in _until_over(job):
            with suppress(ClusterUnreachable):
                words = job.absence() if job.running() is None else ""
                if words not in ("", absence):
                    print(f"{job.name}: {outside.line(words)}", flush=True)
                absence = words
                seen = print_new(job, seen)
            with suppress(EdlError):  # a master that starts or restarts
                status = _ask(job)
                told, line = next_line(told, status, clock.now()) if status is not None else (told, "")
                if line:
                    print(line, flush=True)
        print_new(job, seen)
    result = job.result()
    if result is None:
        print(f"{job.name}: {outside.line(job.absence())}")
        return 1
    print(f"{result.phase}: {outside.story(result.reason)}")
    if result.path:
        print(f"The result is in {outside.line(result.path)}")
    return 1 if result.phase == FAILED else 0


def _until_over(job: KnownJob) -> Iterator[None]:
    for _ in clock.polls(REFRESH_SECONDS):
        if _over(job):
            return
        yield


def _over(job: KnownJob) -> bool:
    try:
        return job.over()
    except ClusterUnreachable:
        return False  # the job does not need the API server, and it will be back


def _draw(job: KnownJob, live: Live) -> RenderableType | None:
    """Returns the picture of a job whose master answered."""
    try:
        said = _ask(job)
        if said is None:
            live.update(_waiting(job), refresh=True)
        else:
            picture = render(said)
            live.update(picture, refresh=True)
            return picture
    except EdlError as error:  # a master that starts or restarts
        live.update(Text(f"{job.name}: {outside.line(error)}"), refresh=True)
    return None


def _ask(job: KnownJob) -> JobStatus | None:
    """None while there is no master to ask."""
    from edl_allreduce.rpc.client import command

    address = job.running()
    if address is None:
        return None
    return command(address.address, address.token, Ask(), certificate=address.certificate)


def _waiting(job: KnownJob) -> Text:
    return Text(f"{job.name}: {outside.line(job.absence())}")
