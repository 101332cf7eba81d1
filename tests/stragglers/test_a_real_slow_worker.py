"""One worker of a real job is slowed from outside: it is named, and replaced where the user wants it so.

Steps wait instead of computing, so that this costs no core for as long as it takes to call a worker slow.
"""

from __future__ import annotations

import pytest

from edl_allreduce import clock
from edl_allreduce.cluster.registry import LocalJobFiles
from edl_allreduce.core import event_data, events
from edl_allreduce.core.protocol import Ask
from edl_allreduce.rpc.client import command
from edl_allreduce.testing.jobs import RunningJob
from tests.conftest import ZOO

pytestmark = pytest.mark.training

SLEEPER = '''
import os
import time
import numpy
import tensorflow

_keras_loss = loss

def _pause():
    """Its own part of a step takes five times as long while the file of its process is there."""
    time.sleep(0.5 if os.path.exists(f"{DIRECTORY}/slow-{os.getpid()}") else 0.1)
    return numpy.float32(0)

def loss(labels, predictions):
    return _keras_loss(labels, predictions) + tensorflow.numpy_function(_pause, [], tensorflow.float32)
'''


def test_it_is_named_its_scores_are_shown_and_another_one_takes_its_place(launch, tmp_path):
    zoo = tmp_path / "zoo"
    zoo.mkdir()
    digits = ZOO / "digits" / "mlp.py"
    (zoo / "sleepy.py").write_text(f"{digits.read_text()}\nDIRECTORY = {str(tmp_path)!r}\n{SLEEPER}")
    job = launch(
        num_workers=3,
        min_workers=2,
        num_epochs=100_000,
        model_zoo=zoo,
        model_def="sleepy.custom_model",
        replace_stragglers=2,
    )
    job.wait_for("plan", "workers 0, 1, 2")
    (tmp_path / f"slow-{job.pid(1)}").touch()
    for _ in clock.polls(0.5, within=120):
        scores = scores_of(job)
        if scores[1] < 0.5 < scores[0]:
            break
    else:
        pytest.fail(f"nobody is seen to be slow: {scores}\n{job.story()}")
    named = job.wait_for("straggler", "worker 1 is slow")
    slow = event_data.from_data(named.event)
    assert isinstance(slow, events.WorkerSlow) and slow.replaced
    assert slow.seconds > 2 * slow.usual > 0.1
    job.wait_for("exit", "worker 1")
    job.wait_for("plan", "workers 0, 2, 3")


def scores_of(job: RunningJob) -> dict[int, float]:
    """Beside the best rank, as `elasticdl status` would show them."""
    address = LocalJobFiles(job.job_dir).running()
    assert address is not None
    workers = command(address.address, address.token, Ask()).workers
    return {worker.worker_id: worker.best_rank_score for worker in workers}
