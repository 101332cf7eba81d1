"""Horovod's own elastic launcher, with `elasticdl hosts` as its discovery."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edl_allreduce.testing.faults import Fault

PROGRAMS = Path(sys.executable).parent

SCRIPT = """
import horovod.tensorflow as hvd
import tensorflow as tf

hvd.init()


@hvd.elastic.run
def train(state):
    while state.batch < 3:
        total = hvd.allreduce(tf.constant(1.0), op=hvd.Sum, name=f"batch{state.batch}")
        state.batch += 1
        state.commit()
    print(f"rank {hvd.rank()} of {hvd.size()}: {float(total)}", flush=True)


train(hvd.elastic.TensorFlowState(variables=[tf.Variable(0.0)], batch=0))
"""


@pytest.mark.training
def test_a_plain_horovod_elastic_script_runs_where_the_ring_is(tmp_path, launch):
    job = launch(Fault("compute", "hold", {"step": 3}, repeat=True), num_workers=2)
    job.wait_fired(2)
    (tmp_path / "plain.py").write_text(SCRIPT)
    discover = tmp_path / "discover.sh"
    discover.write_text(f"#!/bin/sh\nexec {PROGRAMS / 'elasticdl'} hosts --job_dir={job.job_dir}\n")
    discover.chmod(0o755)
    done = subprocess.run(
        [
            str(PROGRAMS / "horovodrun"), "-np", "2", "--min-np", "1", "--max-np", "4",
            "--network-interfaces", "lo", "--host-discovery-script", str(discover),
            sys.executable, str(tmp_path / "plain.py"),
        ],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 0 of 2: 2.0" in done.stdout and "rank 1 of 2: 2.0" in done.stdout, done.stdout
    job.release()
    assert job.wait() == 0, job.story()
