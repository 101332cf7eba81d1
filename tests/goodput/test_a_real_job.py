"""Where the time of a real job went, one of whose workers is killed: from outside and by its own account."""

from __future__ import annotations

import pytest

from edl_allreduce.cluster.registry import LocalJobFiles
from edl_allreduce.core import event_data, events
from edl_allreduce.testing.faults import Fault

pytestmark = pytest.mark.training


def test_the_parts_of_a_job_with_a_kill_add_up_to_its_wall_time(launch, digits_data, tmp_path):
    job = launch(
        Fault("reduce", "kill", {"rank": 1, "step": 20}),
        num_workers=3,
        num_epochs=8,
        failure_detection_seconds=5,
        evaluation_steps=40,
        validation_data=digits_data,
        checkpoint_steps=25,
        checkpoint_dir=tmp_path / "checkpoints",
    )
    assert job.wait() == 0, job.story()
    assert [fault["rank"] for fault in job.fired()] == [1]
    status = LocalJobFiles(job.job_dir).result()
    assert status is not None
    seen = status.goodput
    # The clock of the calendar, read by the master for each event: from the first launch to the end.
    records = job.events()
    outside = records[-1].wall - records[0].wall
    assert records[-1].kind == "end"
    assert sum(seen.seconds.values()) == pytest.approx(outside, rel=0.01)
    assert sum(seen.worker_seconds.values()) == pytest.approx(seen.worker_wall)
    assert seen.worker_wall >= 2.9 * outside, "three workers were wanted all the time"
    told = [e for e in map(event_data.from_data, (r.event for r in records)) if e is not None]
    pauses = [e.pause for e in told if isinstance(e, events.RingReformed)]
    # A worker's account of a moment is stretched to the wall time of it, so on a busy machine the parts of a
    # pause come out longer than the worker itself felt them.
    assert pauses and 0 < sum(seen.reforms["loss"].values()) < outside
    for bucket in ("productive_step", "program_startup", "evaluation", "unproductive_checkpoint_save_time"):
        assert seen.seconds[bucket] > 0, seen
    (account,) = [event for event in told if isinstance(event, events.TimeAccounted)]
    assert dict(account.seconds) == pytest.approx(seen.seconds)
