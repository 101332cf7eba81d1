"""`elasticdl train --image_name=… --follow` where nobody draws a table: lines until the job is over."""

from __future__ import annotations

import pytest

from edl_allreduce.cli import following
from edl_allreduce.core.status import EventRecord
from edl_allreduce.errors import ClusterUnreachable
from edl_allreduce.spec import JobSpec
from tests.terminal.statuses import status


class Followed:
    """A job whose master waits, then is over; the API server is away for a moment."""

    name = "digits"

    def __init__(self, looks: int, phase: str | None) -> None:
        self._looks = looks
        self._phase = phase

    def over(self) -> bool:
        self._looks -= 1
        if self._looks == 1:
            raise ClusterUnreachable("away")
        return self._looks <= 0

    def running(self) -> None:
        return None

    def absence(self) -> str:
        return "its master's pod is on its way"

    def events(self) -> list[EventRecord]:
        return [EventRecord(1, 0.0, "plan", "because")]

    def result(self):
        return status(phase=self._phase, reason="a reason") if self._phase is not None else None


@pytest.mark.parametrize(("phase", "code"), [("Succeeded", 0), ("Stopped", 0), ("Failed", 1), (None, 1)])
def test_the_end_of_a_job_is_the_exit_code(phase, code, monkeypatch, capsys):
    monkeypatch.setattr(following, "REFRESH_SECONDS", 0.001)
    asked = []
    monkeypatch.setattr(
        following, "find_job", lambda name, **where: asked.append((name, where)) or Followed(3, phase)
    )
    assert following.follow(JobSpec(job_name="digits", namespace="team", image_name="i")) == code
    assert asked == [("digits", {"namespace": "team", "force_kubeconfig": False})]
    out = capsys.readouterr().out
    assert out.count("because") == 1, "an event is told once"
    assert out.count("on its way") == (1 if phase is not None else 2), "and so is what is waited for"
    assert (f"{phase}: a reason" in out) == (phase is not None)
