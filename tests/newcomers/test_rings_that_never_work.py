"""A newcomer whose tensors do not fit, although everything that could be compared beforehand was the same."""

from __future__ import annotations

import pytest

from edl_allreduce.testing.faults import Fault

pytestmark = pytest.mark.training

SCRIPT = """
import pathlib, sys, threading
import tensorflow as tf
from edl_allreduce import elastic

total = tf.Variable(tf.zeros([]))
size = int(pathlib.Path(sys.argv[1]).read_text())
with elastic.join(records=400, state=[total]) as job:
    for step in job.steps(rehearse=False):
        threading.Event().wait(0.02)  # not over before the newcomer came and went
        with step:
            ones = step.average([tf.ones([size])], 0.0)[0]
            assert float(tf.reduce_max(tf.abs(ones - 1.0))) < 1e-3, "never garbage"
            total.assign_add(ones[0])
"""


def test_it_is_left_out_after_three_rings_and_the_others_train_on(launch, tmp_path, lose_one):
    script, size = tmp_path / "loop.py", tmp_path / "size"
    script.write_text(SCRIPT)
    size.write_text("1000")
    job = launch(
        Fault("compute", "hold", {"step": 12}, repeat=True),
        model_zoo=None,
        model_def=None,
        training_data=None,
        job_command=f"python {script} {size}",
        num_workers=2,
        minibatch_size=4,
        num_epochs=5,
        failure_detection_seconds=5,
    )
    job.wait_fired(2)
    size.write_text("700")
    lose_one(job)
    job.wait_for("ready", "worker 2")
    job.release()
    told = job.wait_for("short").text
    assert "worker 2 is left out: 3 rings in a row with it broke" in told
    assert "ranks bring gradients of different shapes" in told
    assert job.wait() == 0, job.story()
    assert len([e for e in job.events() if e.kind == "plan"]) < 10, job.story()
    assert job.audit().clean
