"""Small jobs on real digits that are ended and started again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edl_allreduce.testing.faults import Fault
from edl_allreduce.testing.jobs import RunningJob
from tests.conftest import EPOCHS, GLOBAL_BATCH


@pytest.fixture
def start_job(launch: Callable[..., RunningJob], tmp_path: Path) -> Callable[..., RunningJob]:
    def start(*faults: Fault, workers: int = 2, **flags: object) -> RunningJob:
        """The same job, started as often as this is called."""
        settings = {
            "minibatch_size": GLOBAL_BATCH // workers,
            "num_epochs": EPOCHS,
            "checkpoint_dir": tmp_path / "checkpoints",
            **flags,
        }
        return launch(*faults, num_workers=workers, **settings)

    return start
