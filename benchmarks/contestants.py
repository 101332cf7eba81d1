"""Start ours as a user would, and peers as their users would."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from benchmarks import stock
from benchmarks.frame import BenchmarkFailed, must_be_clean
from benchmarks.marks import read_marks
from edl_allreduce.testing.jobs import RunningJob

ROOT = Path(__file__).resolve().parents[1]
ZOO = ROOT / "benchmarks" / "zoo"
LOOK_SECONDS = 0.02
LONG = 240.0

# --------------------------------------------------------------------------------------------------- data


def write_records(directory: Path, records: int) -> Path:
    """Made-up images: what is in them does not change how long a step takes."""
    random = np.random.default_rng(0)
    directory.mkdir(parents=True, exist_ok=True)
    np.save(directory / "x.npy", random.integers(0, 256, (records, 784), dtype=np.uint8))
    np.save(directory / "y.npy", random.integers(0, 10, records))
    return directory


def threads_of(processes: int) -> int:
    """So many for each process of a machine, ours and peers alike."""
    return max(1, (os.cpu_count() or 1) // processes)


# --------------------------------------------------------------------------------------------------- ours


@dataclass(frozen=True)
class Reform:
    """One survivor's pause, in seconds, as it reported it."""

    worker: int
    generation: int
    size: int
    pause: float
    phases: tuple[float, ...]
    """notice, plan, join, sync, first step"""


PHASES = ("notice", "plan", "join", "sync", "first step")
_REFORMED = re.compile(
    r"re-formed: generation (\d+), (\d+) ranks, pause ([\d.]+) s = "
    + r" \+ ".join(rf"{phase} ([\d.]+)" for phase in PHASES)
)
_LOSS = re.compile(r"^(\S+ \S+) INFO .* steps = (\d+)$", re.MULTILINE)


@contextmanager
def our_job(directory: Path, model: str, data: Path, **flags: object) -> Iterator[RunningJob]:
    """`elasticdl train …`; whatever happens, nothing of it is left running."""
    directory.mkdir(parents=True)
    settings = {
        "job_name": directory.name,
        "model_zoo": ZOO,
        "model_def": f"{model}.custom_model",
        "training_data": data,
        "log_loss_steps": 1000,
        "cool_down_seconds": 60,  # begin with all of them
        **flags,
    }
    job = RunningJob(directory, [f"--{name}={value}" for name, value in settings.items()])
    try:
        yield job
    finally:
        job.end()


def finish(job: RunningJob, codes: Sequence[int] = (0,), timeout: float = LONG) -> None:
    """Wait for the end, and for a clean audit."""
    code = job.wait(timeout)
    if code not in codes:
        raise BenchmarkFailed(f"the job ended with {code}\n{job.story()}")
    must_be_clean(job.audit(), job.directory.name)


def stop(job: RunningJob) -> None:
    """End at a step boundary, as Ctrl-C does."""
    job.process.send_signal(signal.SIGINT)
    finish(job, codes=(0, 130))


def our_steps(job: RunningJob, worker: int) -> list[tuple[float, int]]:
    """When which step ended, from the lines that --log_loss_steps writes."""
    lines = _LOSS.findall(job.log(worker))
    return [(datetime.fromisoformat(w.replace(",", ".")).timestamp(), int(s)) for w, s in lines]


def our_pace(job: RunningJob, worker: int, warm_up: int) -> float:
    """Steps per second after the first ones."""
    counted = [(when, step) for when, step in our_steps(job, worker) if step >= warm_up]
    (first, low), (last, high) = counted[0], counted[-2]  # the very last line tells of the end
    return (high - low) / (last - first)


def reforms(job: RunningJob) -> list[Reform]:
    """Every survivor's report so far."""
    found = []
    for path in sorted((job.job_dir / "logs").glob("worker-*.log")):
        worker = int(path.stem.split("-")[1])
        for generation, size, pause, *phases in _REFORMED.findall(path.read_text(errors="replace")):
            found.append(
                Reform(worker, int(generation), int(size), float(pause), tuple(float(p) for p in phases))
            )
    return found


# -------------------------------------------------------------------------------------------------- peers


def peers_run_on() -> str:
    """What Horovod the peers get."""
    if stock.directory() is not None:
        return "Peers run on stock Horovod 0.28.1 (only made to compile)."
    return (
        "Peers run on this project's Horovod with its quick init switched off, since no stock build is here "
        "(make one with `python -m benchmarks.stock`): they are better off than stock."
    )


def peer_environment(*, ours: bool = False) -> dict[str, str]:
    """For a peer: stock Horovod where it was built; `ours`: the one that our workers use."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HOROVOD_", "EDL_", "OMPI_"))}
    home = None if ours else stock.directory()
    path = [str(ROOT), *([] if home is None else [str(home)]), *filter(None, [kept.get("PYTHONPATH")])]
    quick = {} if ours or home is not None else {"HOROVOD_EDL_LEAN_INIT": "0"}
    return {**kept, **quick, "PYTHONPATH": os.pathsep.join(path), "TF_CPP_MIN_LOG_LEVEL": "3"}


HOROVODRUN = (sys.executable, "-m", "horovod.runner.launch")


class Peer:
    """A peer's command and the processes that it started, known by the marks that they leave."""

    def __init__(self, directory: Path, command: Sequence[str], environment: dict[str, str]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.marks = directory / "marks"
        self._log = directory / "log"
        with self._log.open("wb") as out:
            self.process = subprocess.Popen(
                [*command], stdout=out, stderr=out, env=environment, start_new_session=True
            )

    def wait(self, timeout: float = LONG) -> None:
        """Until it ended well."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise BenchmarkFailed(f"{self.story()}\nthe peer did not end within {timeout:.0f} s") from None
        if code != 0:
            raise BenchmarkFailed(f"{self.story()}\nthe peer ended with {code}")

    def until(self, happened: Callable[[], bool], timeout: float) -> bool:
        """False when it did not happen in time, or the peer ended first."""
        pause = threading.Event()
        for _ in range(int(timeout / LOOK_SECONDS)):
            if happened():
                return True
            if self.process.poll() is not None:
                return happened()
            pause.wait(LOOK_SECONDS)
        return False

    def story(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]

    def end(self) -> None:
        """The launcher first, so that it starts nobody again; then its ranks by their own pids."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pid in read_marks(self.marks):
            if _is_a_program(pid):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def peer(directory: Path, command: Sequence[str], environment: dict[str, str]) -> Iterator[Peer]:
    running = Peer(directory, command, environment)
    try:
        yield running
    finally:
        running.end()


def _is_a_program(pid: int) -> bool:
    """A pid may be somebody else's by now."""
    try:
        return b"benchmarks.programs" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def program(name: str, **flags: object) -> list[str]:
    """The command of one rank of a peer."""
    words = [f"--{key}={value}" for key, value in flags.items()]
    return [sys.executable, "-m", f"benchmarks.programs.{name}", *words]


NAMES = ("localhost", "127.0.0.1", "127.1", "127.0.1", "127.00.0.1", "127.0.00.1")
"""All of them this machine. Horovod Elastic never starts a rank again on a host where one died, so each rank
of a measurement needs a host of its own."""


class Hosts:
    """What Horovod Elastic's discovery script finds; it is asked once a second."""

    def __init__(self, directory: Path, names: Sequence[str]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._list = directory / "hosts"
        self.script = directory / "discover"
        self.script.write_text(f"#!/bin/sh\ncat '{self._list}'\n")
        self.script.chmod(0o755)
        self.are(names)

    def are(self, names: Sequence[str]) -> None:
        draft = self._list.with_suffix(".new")
        draft.write_text("".join(f"{name}:1\n" for name in names))
        draft.replace(self._list)

    def launcher(self, count: int) -> list[str]:
        """horovodrun that begins with so many ranks and goes on with one."""
        numbers = ["-np", str(count), "--min-np", "1", "--max-np", str(max(count, len(NAMES)))]
        return [*HOROVODRUN, *numbers, "--host-discovery-script", str(self.script)]
