"""A Horovod without our changes, as an image may bring it: the work-arounds carry a job through a kill."""

from __future__ import annotations

import pytest

from benchmarks import stock
from edl_allreduce.testing.faults import Fault
from tests.conftest import EPOCHS, GLOBAL_BATCH

pytestmark = pytest.mark.training


@pytest.mark.timeout(900)  # on a machine's first run it is built
def test_a_rank_is_killed_in_a_step(launch, cold, nothing_was_lost, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(stock.build()))
    job = launch(
        Fault("reduce", "kill", {"rank": 1, "step": 10}),
        program=cold,
        num_workers=3,
        minibatch_size=GLOBAL_BATCH // 3,
        num_epochs=EPOCHS,
    )
    nothing_was_lost(job)
    assert len(job.fired()) == 1
    assert "this Horovod is a stock build" in job.log(0)
