"""What nobody could try where this was written: the ring on real GPUs. `make test-gpu` writes a report.

One rank per GPU, so most of it needs two. `GPU_REHEARSAL=yes` runs the same code on the CPU, which shows that
this file works and nothing about GPUs.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ring_lab import Lab, Worker

from edl_allreduce.cluster import gpus
from edl_allreduce.testing.faults import Fault
from tests.conftest import EPOCHS, GLOBAL_BATCH

pytestmark = [pytest.mark.gpu, pytest.mark.training, pytest.mark.timeout(900)]

REHEARSAL = os.environ.get("GPU_REHEARSAL") == "yes"
HOLD = Fault("compute", "hold", {"step": 20}, repeat=True)


@dataclasses.dataclass(frozen=True)
class Machine:
    """Which GPUs there are, and how TensorFlow calls the one that a worker sees."""

    gpus: tuple[str, ...]
    device: str

    def ring(self) -> int:
        """How many ranks it can have; a ring of one proves little."""
        if len(self.gpus) < 2:
            pytest.skip(f"needs 2 GPUs, {len(self.gpus)} here: NCCL takes one rank per GPU")
        return min(len(self.gpus), 4)


@pytest.fixture
def machine() -> Machine:
    if REHEARSAL:
        return Machine(("", ""), "/CPU:0")
    found = gpus.on_this_machine(os.environ)
    if not found:
        pytest.skip("no NVIDIA GPU here (no /dev/nvidia0): nothing of this was tested")
    return Machine(tuple(found), "/GPU:0")


@pytest.fixture(scope="module")
def _gpu_lab() -> Iterator[Lab]:
    lab = Lab(Path(__file__).with_name("gpu_worker.py"))
    yield lab
    lab.close()


@pytest.fixture
def ring(machine: Machine, _gpu_lab: Lab) -> Iterator[list[Worker]]:
    """A worker per GPU, in one ring."""
    workers = _gpu_lab.workers(machine.ring())
    for gpu, worker in zip(machine.gpus, workers, strict=False):
        seen = worker.ask("use", gpu=gpu, device=machine.device).good()
        assert REHEARSAL or "GPU" in seen, f"TensorFlow sees {seen}"
    store = _gpu_lab.store(len(workers))
    _gpu_lab.tell_init(workers, store)
    for worker in workers:
        worker.answer().good()
    yield workers
    _gpu_lab.reset()


def test_the_doctor_sees_gpus_and_nccl(machine: Machine, gpu_report: dict[str, Any]) -> None:
    command = [sys.executable, "-m", "edl_allreduce.cli", "doctor", "--output=json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    findings = {each["topic"]: each["detail"] for each in json.loads(done.stdout)["findings"]}
    gpu_report["doctor"] = findings
    assert done.returncode == 0
    if not REHEARSAL:
        assert "NCCL" in findings["Horovod"], "built without: HOROVOD_GPU_OPERATIONS=NCCL scripts/setup"
        assert "GPU" in findings["devices"]


def test_collectives_agree_with_numpy(
    ring: list[Worker], machine: Machine, gpu_report: dict[str, Any]
) -> None:
    for worker in ring:
        worker.tell("collectives")
    for rank, worker in enumerate(ring):
        said = worker.answer().good()
        gpu_report[f"collectives of rank {rank}"] = said
        assert machine.device in said["device"].replace("device:", "")
        assert set(said["worst"].values()) == {0.0}


def test_how_long_a_sum_takes(ring: list[Worker], gpu_report: dict[str, Any]) -> None:
    """No assertion about time: the report has it."""
    figures = {}
    for elements in (1, 2**18, 2**24):
        for worker in ring:
            worker.tell("speed", elements=elements, times=20)
        figures[f"{4 * elements} bytes"] = max(worker.answer().good() for worker in ring)
    gpu_report[f"seconds per sum, {len(ring)} ranks"] = figures
    assert len(figures) == 3


@pytest.fixture
def job_of(launch, cold, machine: Machine):
    """A job with a worker per GPU; two are enough to lose one."""
    machine.ring()

    def start(*faults: Fault, num_workers: int = 2, **flags: object):
        return launch(
            *faults,
            program=cold,
            num_workers=num_workers,
            num_epochs=EPOCHS,
            minibatch_size=GLOBAL_BATCH // num_workers,
            failure_detection_seconds=5,
            **flags,
        )

    return start


def test_a_job_trains_to_the_model_of_one_process(job_of, nothing_was_lost) -> None:
    nothing_was_lost(job_of())


def test_a_killed_worker_costs_no_step(job_of, nothing_was_lost, gpu_report: dict[str, Any]) -> None:
    job = job_of(Fault("reduce", "kill", {"rank": 1, "step": 20}))
    nothing_was_lost(job)
    assert len(job.fired()) == 1
    gpu_report["after a kill"] = [record.text for record in job.events()]


def test_a_frozen_worker_is_left_behind(job_of, nothing_was_lost) -> None:
    """Only the master's order ends the kernel that waits for it."""
    job = job_of(Fault("reduce", "freeze", {"rank": 1, "step": 20}))
    nothing_was_lost(job)
    assert len(job.fired()) == 1


def test_a_worker_that_drains_disturbs_nobody(job_of, nothing_was_lost) -> None:
    job = job_of(HOLD)
    job.wait_fired(2)
    job.signal(1, signal.SIGTERM)
    job.wait_for("plan", "worker 1 drains")
    job.release()
    nothing_was_lost(job)
    assert "broke" not in job.log(0)


def test_a_job_grows_by_a_worker(job_of, nothing_was_lost) -> None:
    job = job_of(HOLD, num_workers=1)
    job.wait_fired(1)
    scale = ["scale", "--job_name=job", f"--job_dir={job.job_dir}", "--num_workers=2"]
    subprocess.run([sys.executable, "-m", "edl_allreduce.cli", *scale], check=True)
    job.wait_for("ready", "worker 1")
    job.release()
    nothing_was_lost(job)


def test_mixed_precision_trains(job_of) -> None:
    job = job_of(mixed_precision="mixed_float16")
    assert job.wait(400) == 0, job.story()
    assert job.audit().clean
