"""Jobs of three real workers on real digits, with faults."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edl_allreduce.testing.faults import Fault
from edl_allreduce.testing.jobs import RunningJob
from tests.conftest import EPOCHS, GLOBAL_BATCH

WORKERS = 3


@pytest.fixture
def start_job(launch: Callable[..., RunningJob]) -> Callable[..., RunningJob]:
    def start(*faults: Fault, workers: int = WORKERS, **flags: object) -> RunningJob:
        settings = {
            "minibatch_size": GLOBAL_BATCH // WORKERS,
            "num_epochs": EPOCHS,
            "log_loss_steps": 10,
            "failure_detection_seconds": 5,
            **flags,
        }
        return launch(*faults, num_workers=workers, **settings)

    return start
