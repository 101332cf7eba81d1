"""Horovod with NCCL, really built, on a machine without a GPU: it loads, and trains on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edl_allreduce.testing.faults import Fault
from tests.conftest import EPOCHS, GLOBAL_BATCH

pytestmark = [pytest.mark.nccl, pytest.mark.training, pytest.mark.timeout(1800)]


def dynamic_section(library: Path) -> str:
    command = ["readelf", "--dynamic", str(library)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_it_is_linked_with_nccl_and_the_cuda_runtime_and_finds_them_beside_itself(site):
    (library,) = (site / "horovod" / "tensorflow").glob("mpi_lib*.so")
    section = dynamic_section(library)
    assert "[libnccl.so.2]" in section and "[libcudart.so.12]" in section
    assert "$ORIGIN/../../nvidia/nccl/lib:$ORIGIN/../../nvidia/cuda_runtime/lib" in section
    assert "libcuda.so" not in section, "it could not be loaded without a driver"


def test_the_doctor_tells_it_apart_and_names_what_is_missing_here(site):
    if list(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("this machine has a GPU; make test-gpu asks the doctor there")
    done = subprocess.run(
        [sys.executable, "-m", "edl_allreduce.cli", "doctor", "--output=json"],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
    )
    said = {finding["topic"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert done.returncode == 0, "it is able to train"
    assert "gloo, NCCL 2.32.3, built with our changes" in said["Horovod"]["detail"]
    assert "libcuda.so.1" in said["devices"]["detail"]


def test_a_job_trains_on_the_cpu_with_it_and_survives_a_kill(
    launch, cold, nothing_was_lost, site, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", str(site))
    job = launch(
        Fault("reduce", "kill", {"rank": 1, "step": 10}),
        program=cold,
        num_workers=2,
        minibatch_size=GLOBAL_BATCH // 2,
        num_epochs=EPOCHS,
    )
    nothing_was_lost(job)
    assert len(job.fired()) == 1
    assert "stock build" not in job.log(0)
