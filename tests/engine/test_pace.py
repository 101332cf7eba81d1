"""How long steps take, as heartbeats tell it: masters derive from it how long a rank may be waited for."""

from __future__ import annotations

import pytest

from edl_allreduce import clock
from edl_allreduce.core.goodput import Bucket
from edl_allreduce.worker.loop.orders import Progress
from edl_allreduce.worker.loop.pace import Pace


class Steps:
    """A worker that makes steps in a time that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(clock, "now", lambda: self.now)
        self.progress = Progress()
        self.pace = Pace(self.progress)

    def ring(self, *seconds: float) -> list[float]:
        """The steps of a new ring; what is told after each."""
        self.pace.ring_begins()
        told = []
        for number, one in enumerate(seconds):
            self.pace.begins()
            self.pace.takes()
            self.pace.has_taken()
            self.now += one
            self.pace.meets()
            self.pace.applied([], Bucket.FIRST_STEP if number == 0 else None)
            self.pace.over()
            told.append(self.progress.step_seconds)
        return told


def test_the_first_step_of_a_ring_is_no_measure_of_those_that_follow(monkeypatch):
    steps = Steps(monkeypatch)
    assert steps.ring(30.0, 0.5, 0.5) == pytest.approx([0.0, 0.5, 0.5])


def test_after_a_re_form_the_usual_step_of_before_is_told_until_there_is_a_new_one(monkeypatch):
    steps = Steps(monkeypatch)
    steps.ring(1.0, 0.5, 0.5)
    assert steps.ring(30.0, 0.25) == pytest.approx([0.5, 0.25])
