"""A script whose master is gone for good: it failed, unless it was to leave anyway."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from edl_allreduce.errors import JobFailed
from edl_allreduce.spec import parse_job
from edl_allreduce.worker.loop.orders import Ending
from edl_allreduce.worker.script import part
from edl_allreduce.worker.script.turns import Over

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize("draining", [True, False], ids=["asked by the master", "not asked"])
def test_who_was_asked_to_leave_did_not_fail(draining, monkeypatch):
    told = SimpleNamespace(orders=SimpleNamespace(draining=draining))
    monkeypatch.setattr(part, "find_worker", lambda spec: told)
    made = part.Part(parse_job("worker", []).spec)
    with nullcontext() if draining else pytest.raises(JobFailed, match="no master for"):
        assert not made.over(Over(Ending.ABANDONED))
