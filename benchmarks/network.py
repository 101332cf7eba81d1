"""Steps per second where the network is the limit, over static horovodrun, beside what could be had at best.

    python -m benchmarks.network [--workers 2] [--gigabits 0.5,1,10] [--models cnn,cnn4,cnn25] [--rounds 2]

Each worker is a machine of its own: a network namespace whose link sends no more than so many Gbit/s (a token
bucket, `tc … tbf`). Ours is a master and workers started by hand; the peer is horovodrun, which starts its
ranks on these machines through an `ssh` of ours. Both get the same model, records, batch, threads, in turn.

The bound is the longer one of computing (as many processes at once that train the same model without a ring)
and sending (a ring of N sends 2 (N-1)/N of all gradients from each machine). No ring can be quicker that sums
all gradients of a step as they are, before it begins the next one (of `words` few rows have a gradient). All
machines share the cores of this one.

It needs root, for the namespaces.
"""

from __future__ import annotations

import argparse
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import frame
from benchmarks.contestants import (
    HOROVODRUN,
    LONG,
    ZOO,
    finish,
    our_pace,
    peer,
    peer_environment,
    peers_run_on,
    program,
    threads_of,
    write_records,
)
from benchmarks.frame import BenchmarkFailed, Figure, Report, said
from benchmarks.links import INTERFACE, Links, must_be_possible
from benchmarks.marks import read_marks, steps_per_second
from edl_allreduce.contract import JOB_TOKEN
from edl_allreduce.testing.jobs import RunningJob

BATCH = 64
"""Of each worker."""
EPOCH_STEPS = 50
PARAMETERS = {"mlp": 235_146, "cnn": 421_576, "cnn4": 3_965_776, "cnn25": 24_930_876, "words": 6_425_290}
FEWEST, MOST = 12, 300
"""Steps of one run."""
WARM_UP = 0.2
"""The part of the steps that does not count."""
COMPUTE_STEPS = 20
PORT = 50001


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    workers: int
    gigabits: float
    model: str
    compute: float
    """Seconds of a step without a ring."""

    @property
    def sending(self) -> float:
        """Seconds that the link needs for a step."""
        share = 2 * (self.workers - 1) / self.workers
        return share * PARAMETERS[self.model] * 32 / (self.gigabits * 1e9)

    @property
    def bound(self) -> float:
        """Seconds."""
        return max(self.compute, self.sending)

    def steps(self, seconds: float) -> int:
        """So many take about so long."""
        return int(min(MOST, max(FEWEST, seconds / (self.compute + self.sending))))

    @property
    def name(self) -> str:
        return f"{self.workers} workers, {self.gigabits:g} Gbit/s, {self.model}"


def main(argv: list[str] | None = None) -> int:
    return frame.run(measure, flags, argv)


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", default="2", help="rings to try, for example 2,4")
    parser.add_argument("--gigabits", default="0.5,1,10", help="what each link sends per second")
    parser.add_argument("--models", default="cnn,cnn4,cnn25", help=f"some of {', '.join(PARAMETERS)}")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=6.0, help="of training in each run, about")
    parser.add_argument("--job_flags", default="", help="more flags for our job, such as --bucket_mb=8")


def measure(settings: argparse.Namespace, directory: Path) -> Report:
    must_be_possible()
    report = Report(
        "network",
        f"steps/s over limited links, batch {BATCH} of each worker",
        ("", "compute, ms", "sending, ms", "ours", "horovodrun", "ours / it", "ours / bound"),
        notes=[peers_run_on(), "Steps/s of ours and of static horovodrun; computing and sending per step."],
    )
    ratios = []
    for workers in map(int, settings.workers.split(",")):
        data = write_records(directory / f"data-{workers}", EPOCH_STEPS * workers * BATCH)
        with Links(workers) as links:
            for model in settings.models.split(","):
                with said(f"{workers} workers: {model} without a ring"):
                    compute = _compute(links, model, data, directory / f"alone-{workers}-{model}")
                for gigabits in map(float, settings.gigabits.split(",")):
                    case = Case(workers, gigabits, model, compute)
                    links.limit(gigabits)
                    ratios.append((case, _compare(case, links, data, directory, settings, report)))
    worst, ratio = min(ratios, key=lambda found: found[1].median)
    report.verdict = (
        f"ours / static horovodrun = {ratio.text()} at worst ({worst.name}); wanted ≥ 1.0 everywhere"
    )
    return report


def _compare(
    case: Case, links: Links, data: Path, directory: Path, settings: argparse.Namespace, report: Report
) -> Figure:
    """Both in turn, and the line of the table that comes of it."""
    steps = case.steps(settings.seconds)
    ours, theirs = [], []
    for round_ in range(settings.rounds):
        where = directory / f"{case.workers}-{case.gigabits:g}-{case.model}-{round_}"
        with said(f"round {round_ + 1}: {case.name}, ours"):
            ours.append(_ours(case, links, data, where / "ours", steps, settings.job_flags.split()))
        with said(f"round {round_ + 1}: {case.name}, static horovodrun"):
            theirs.append(_horovodrun(case, links, data, where / "static", steps))
    mine = report.keep(f"{case.name}, ours", Figure.of(ours))
    peers = report.keep(f"{case.name}, static horovodrun", Figure.of(theirs))
    ratio = report.keep(f"{case.name}, ratio", mine.over(peers))
    of_bound = report.keep(f"{case.name}, of the bound", Figure.of(pace * case.bound for pace in ours))
    report.rows.append(
        (
            case.name,
            f"{case.compute * 1000:.0f}",
            f"{case.sending * 1000:.0f}",
            mine.text(),
            peers.text(),
            ratio.text(),
            f"{of_bound.median:.2f}",
        )
    )
    return ratio


def _compute(links: Links, model: str, data: Path, where: Path) -> float:
    """Seconds of a step of one worker while as many others compute beside it, and nobody waits."""
    with ExitStack() as stack:
        running = []
        for number in range(len(links.addresses)):
            place = where / str(number)
            alone = _rank("plain", model, data, COMPUTE_STEPS, place, len(links.addresses))
            running.append(stack.enter_context(peer(place, [*links.on(number), *alone], peer_environment())))
        for one in running:
            one.wait()
        paces = [
            steps_per_second(marks, int(COMPUTE_STEPS * WARM_UP))
            for one in running
            for marks in read_marks(one.marks).values()
        ]
    return 1 / min(paces)


def _rank(name: str, model: str, data: Path, steps: int, where: Path, workers: int) -> list[str]:
    return program(
        name, model=model, data=data, steps=steps, batch=BATCH, threads=threads_of(workers),
        marks=where / "marks",
    )  # fmt: skip


def _horovodrun(case: Case, links: Links, data: Path, where: Path, steps: int) -> float:
    hosts = ",".join(f"{address}:1" for address in links.addresses)
    launcher = [*HOROVODRUN, "-np", str(case.workers), "-H", hosts, "--network-interfaces", INTERFACE]
    ranks = _rank("static", case.model, data, steps, where, case.workers)
    environment = peer_environment()
    environment["PATH"] = f"{links.remote_shell(where / 'bin')}:{environment['PATH']}"
    # horovodrun remembers for an hour which hosts it reached, by the names of those of another benchmark.
    command = [*links.on_hub(), *launcher, "--disable-cache", *ranks]
    with peer(where, command, environment) as running:
        running.wait()
        paces = [steps_per_second(m, int(steps * WARM_UP)) for m in read_marks(running.marks).values()]
        return max(paces)


def _ours(case: Case, links: Links, data: Path, where: Path, steps: int, more: list[str]) -> float:
    with _our_job(case, links, data, where, steps, more) as job:
        finish(job)
        return our_pace(job, worker=0, warm_up=int(steps * WARM_UP))


@contextmanager
def _our_job(
    case: Case, links: Links, data: Path, where: Path, steps: int, more: list[str]
) -> Iterator[RunningJob]:
    """A master on the hub, and a worker on each machine."""
    where.mkdir(parents=True)
    settings = {
        "job_name": f"network-{case.workers}",
        "bind": links.hub_address,
        "port": PORT,
        "min_workers": case.workers,
        "model_zoo": ZOO,
        "model_def": f"{case.model}.custom_model",
        "training_data": data,
        "minibatch_size": BATCH,
        "num_epochs": -(-steps // EPOCH_STEPS),
        "max_step": steps,
        "log_loss_steps": max(1, steps // 10),
        "threads_per_worker": threads_of(case.workers),
    }
    job = RunningJob(
        where,
        [*(f"--{name}={value}" for name, value in settings.items()), *more],
        program=("-m", "edl_allreduce.master.main"),
        within=links.on_hub(),
        environment={JOB_TOKEN: secrets.token_urlsafe()},
    )
    workers = [_worker(job, links, number) for number in range(case.workers)]
    try:
        yield job
        for worker in workers:
            worker.wait(LONG)
    except subprocess.TimeoutExpired:
        raise BenchmarkFailed(f"a worker outlived its job\n{job.story()}") from None
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
            worker.wait()
        job.end()


def _worker(job: RunningJob, links: Links, number: int) -> subprocess.Popen[bytes]:
    logs = job.job_dir / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "edl_allreduce.worker.main", f"--worker_id={number}"]
    master = f"--master_addr={links.hub_address}:{PORT}"
    with (logs / f"worker-{number}.log").open("wb") as log:
        return subprocess.Popen(
            [*links.on(number), *command, master],
            stdout=log,
            stderr=log,
            env=job.environment,
            start_new_session=True,
        )


if __name__ == "__main__":
    raise SystemExit(main())
