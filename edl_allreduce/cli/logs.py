"""`elasticdl logs`: what workers and the master printed."""

from __future__ import annotations

from pathlib import Path

from edl_allreduce.cli.jobs import job_parser, meant, while_running
from edl_allreduce.cluster.registry import KnownJob, LocalJobFiles
from edl_allreduce.errors import UsageError

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
    if follow and not worker:
        raise UsageError("--follow follows one pod: name a worker, or master.")
    for name, pod in pods.items():
        if worker == name or (not worker and name != "master"):
            for line in job.log_lines(pod, follow=follow):
                named = worker or f"[worker {name}]" in line
                print(line if named else f"{name}: {line}", flush=True)
    return 0


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
