"""A worker is killed; the one that stands by joins in the very next ring, and nobody waits for a start."""

from __future__ import annotations

import signal

import pytest

from edl_allreduce.testing.faults import Fault

pytestmark = pytest.mark.training


def test_the_standby_joins_without_a_start(launch):
    job = launch(
        Fault("compute", "hold", {"rank": 0, "step": 5}),
        num_workers=2,
        standby=1,
        num_epochs=2000,
        minibatch_size=24,
        cool_down_seconds=60,
    )
    first, second = job.wait_for("plan").event["workers"]
    standby = job.wait_for("ready", "stands by").event["worker_id"]
    assert {first, second, standby} == {0, 1, 2}
    job.wait_fired(1)  # who has not made a step yet does not go on after a pause, it begins
    job.signal(first, signal.SIGKILL)
    planned = job.wait_for("plan", f"worker {standby} stood by and takes over")
    assert planned.event["workers"] == [second, standby]
    job.wait_for("re-form", f"worker {second} goes on")
    started = [event.event["worker_id"] for event in job.events() if event.kind == "launch"]
    earlier = [e.event["worker_id"] for e in job.events() if e.kind == "launch" and e.serial < planned.serial]
    assert earlier == [0, 1, 2], "nobody was started for it"
    assert started in ([0, 1, 2], [0, 1, 2, 3]), "only whoever stands by from now on"
    job.process.send_signal(signal.SIGINT)
    assert job.wait() in (0, 130)
    assert job.audit().clean, job.audit()
