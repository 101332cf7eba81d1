"""Random lives of a job from a seed: who is killed, told to leave or added, and when; stops and resumes.

Everything is addressed by rank and step, so the same seed does the same on every machine, and all of it
between the first step and the last.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Literal

from edl_allreduce.testing.faults import Fault
from edl_allreduce.testing.jobs import RunningJob
from tests.commands.test_job_commands import elasticdl

BATCH, RECORDS, EPOCHS = 48, 600, 3
STEPS = EPOCHS * -(-RECORDS // BATCH)
FEWEST = 2
"""A ring goes on only with so many, so the ranks 0 and 1 are there in each step."""
MOST = 4
VIRTUAL = 12
MODELS = ("mlp", "cnn", "subclassed", "upstream")

Meanwhile = Literal["scale", "replace", "stop", "kill all"]
"""What is done while the whole ring is held at one step; `replace`: only wait for those that take the place
of others."""


@dataclass(frozen=True)
class Life:
    """From a start of the job to its end, or until it is stopped."""

    workers: int
    faults: tuple[Fault, ...]
    held_at: int
    meanwhile: Meanwhile
    then: int
    """Workers, where it is scaled."""

    def __str__(self) -> str:
        done = [f"{f.action} rank {f.at['rank']} at step {f.at['step']}" for f in self.faults]
        to = f" to {self.then}" if self.meanwhile == "scale" else ""
        return f"{self.workers} workers: {', '.join(done)}; at step {self.held_at} {self.meanwhile}{to}"


def lives_of(seed: int) -> tuple[str, list[Life]]:
    """The model, and one life after the other; all but the last end with a stop."""
    random = Random(f"life {seed}")
    stops = random.choice((0, 1, 1, 2))
    ends = sorted(random.sample(range(8, STEPS - 8, 4), stops))
    lives, begins = [], 2
    for end in (*ends, None):
        meanwhile: Meanwhile = "stop" if end is not None else random.choice(("scale", "replace", "kill all"))
        held = end if end is not None else random.randint(begins + 4, STEPS - 5)
        steps = random.sample(range(begins, held), random.randint(0, 2))
        if end is None:
            steps += random.sample(range(held + 1, STEPS - 1), random.randint(0, 2))
        faults = [
            Fault(
                "compute", random.choice(("kill", "terminate")), {"rank": random.randrange(FEWEST), "step": s}
            )
            for s in sorted(steps)
        ]
        now = random.randint(FEWEST, MOST)
        then = random.choice([n for n in range(FEWEST, MOST + 1) if n != now])
        lives.append(Life(now, tuple(faults), held, meanwhile, then))
        begins = held + 2
    return MODELS[seed % len(MODELS)], lives


def live(life: Life, start: Callable[..., RunningJob], **flags: object) -> RunningJob:
    """One of them, until the job has ended; whatever was to happen has happened."""
    hold = Fault("compute", "hold", {"rank": 0, "step": life.held_at})
    job = start(
        *life.faults,
        hold,
        num_workers=life.workers,
        minibatch_size=BATCH // life.workers,
        min_workers=FEWEST,
        cool_down_seconds=1,
        failure_detection_seconds=60,  # who is held for newcomers of a busy machine is not stuck
        max_worker_crashes=100,
        checkpoint_steps=3,
        **flags,
    )
    job.wait_fired(1 + sum(fault.at["step"] < life.held_at for fault in life.faults))
    match life.meanwhile:
        case "stop":
            job.process.send_signal(signal.SIGINT)
            job.wait_for("stop")
        case "scale":
            elasticdl("scale", f"--job_dir={job.job_dir}", f"--num_workers={life.then}")
            wait_for_all(job)
        case "replace":
            wait_for_all(job)
        case "kill all":
            for worker in present(job) & _workers(job, "ready"):
                job.signal(worker, signal.SIGKILL)
    job.release()
    expected = 130 if life.meanwhile == "stop" else 0
    assert job.wait(400) == expected, f"{life}\n{job.story()}"
    assert len(job.fired()) == len(life.faults) + 1, f"{life}: {job.fired()}\n{job.story()}"
    return job


def present(job: RunningJob) -> set[int]:
    """Workers that were started and are not gone."""
    return _workers(job, "launch") - _workers(job, "exit")


def wait_for_all(job: RunningJob) -> None:
    """Until whoever was started and is still there could join."""
    job._until(lambda: present(job) <= _workers(job, "ready") or None, "all are ready", 120.0)


def _workers(job: RunningJob, kind: str) -> set[int]:
    return {event.event["worker_id"] for event in job.events() if event.kind == kind}
