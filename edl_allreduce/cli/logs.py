"""`elasticdl logs`: what workers and the master printed."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from edl_allreduce.cli.asking import job_parser, meant, while_running
from edl_allreduce.cluster.known import KnownJob
from edl_allreduce.cluster.registry import LocalJobFiles
from edl_allreduce.errors import ClusterError, UsageError

if TYPE_CHECKING:
    from edl_allreduce.cluster.kubernetes.remote import ClusterJob

LIST_SECONDS = 1.0
"""How often the API server is asked for new pods."""

ABOUT = """\
Show what one worker printed, or the master, or all of them with their names in front.

  elasticdl logs --job_name=digits            all workers
  elasticdl logs --job_name=digits 2          worker 2
  elasticdl logs --job_name=digits master
  elasticdl logs --job_name=digits --follow   stay until the job ends
"""


def main(argv: list[str]) -> int:
    parser = job_parser("logs", "[--follow] [WORKER]", ABOUT)
    parser.add_argument(
        "worker", nargs="?", default="", metavar="WORKER", help="a worker's number, or master"
    )
    parser.add_argument("--follow", action="store_true", help="stay until the job ends")
    arguments = parser.read(argv)
    job = meant(arguments)
    if not isinstance(job, LocalJobFiles):
        return _from_pods(job, arguments.worker, arguments.follow)
    if arguments.worker and arguments.worker not in (names := _logs(job)):
        raise UsageError(f"job {job.name} has no log of {arguments.worker}; there are: {', '.join(names)}.")
    printed: dict[str, int] = {}
    for _ in while_running(job) if arguments.follow else [None]:
        for name, path in _logs(job).items():
            if arguments.worker in ("", name) and not (name == "master" and not arguments.worker):
                _print_new(name, path, printed, prefix=not arguments.worker)
    return 0


def _from_pods(job: KnownJob, worker: str, follow: bool) -> int:
    from edl_allreduce.cluster.kubernetes.remote import ClusterJob

    assert isinstance(job, ClusterJob)
    pods = job.pods()
    if worker and worker not in pods:
        raise UsageError(f"job {job.name} has no pod of {worker}; there are: {', '.join(pods)}.")
    if follow:
        return _follow_pods(job, worker)
    for name, pod in pods.items():
        if worker == name or (not worker and name != "master"):
            _print_pod(job, name, pod, prefix=not worker, follow=False)
    return 0


def _follow_pods(job: ClusterJob, worker: str) -> int:
    """One thread per pod; workers that are made later are followed, too."""
    threads: dict[str, threading.Thread] = {}
    for _ in while_running(job, LIST_SECONDS):
        for name, pod in job.pods().items():
            if name not in threads and (worker == name or (not worker and name != "master")):
                given = {"prefix": not worker}
                threads[name] = threading.Thread(
                    target=_follow_pod, args=(job, name, pod), kwargs=given, daemon=True
                )
                threads[name].start()
        if worker and not threads[worker].is_alive():
            break
    for thread in threads.values():
        thread.join(LIST_SECONDS)  # a worker may end a moment after its master
    return 0


def _follow_pod(job: ClusterJob, name: str, pod: str, *, prefix: bool) -> None:
    try:
        _print_pod(job, name, pod, prefix=prefix, follow=True)
    except ClusterError as error:
        print(f"elasticdl: the log of {pod} ends here: {error}", file=sys.stderr)


def _print_pod(job: ClusterJob, name: str, pod: str, *, prefix: bool, follow: bool) -> None:
    for line in job.log_lines(pod, follow=follow):
        print(f"{name}: {line}" if prefix and f"[worker {name}]" not in line else line, flush=True)


def _logs(job: LocalJobFiles) -> dict[str, Path]:
    """The logs of this run by name; those that are older than its master belong to an earlier one."""
    address = job.address()
    since = address.started - 1.0 if address is not None else 0.0
    paths = [path for path in (job.directory / "logs").glob("worker-*.log") if path.stat().st_mtime >= since]
    workers = {path.stem.removeprefix("worker-"): path for path in paths}
    found = {name: workers[name] for name in sorted(workers, key=int)}
    master = job.directory / "master.log"
    return {**found, "master": master} if master.exists() else found


def _print_new(name: str, path: Path, printed: dict[str, int], *, prefix: bool) -> None:
    """Whole lines that came since the last time."""
    with path.open("rb") as log:
        log.seek(printed.get(name, 0))
        new = log.read()
    new = new[: new.rfind(b"\n") + 1]
    printed[name] = printed.get(name, 0) + len(new)
    for line in new.decode(errors="replace").splitlines():
        print(f"{name}: {line}" if prefix and f"[worker {name}]" not in line else line, flush=True)
