"""Whatever a job looks like, what is decided about it makes sense, and its status can be written."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_allreduce.core.controller import status
from edl_allreduce.core.controller.facts import (
    Advice,
    CleanUp,
    DeleteMaster,
    Known,
    MakeMaster,
    Master,
    Post,
    Stage,
    Told,
    Wish,
    Workers,
)
from edl_allreduce.core.controller.mail import Orders, Progress
from edl_allreduce.core.controller.reconcile import reconcile
from edl_allreduce.core.controller.survey import time_of
from edl_allreduce.core.job.lifecycle import Phase as JobPhase
from edl_allreduce.core.trainingjob import FINAL, Phase
from edl_allreduce.spec.resource.schema import unknown
from edl_allreduce.spec.resource.status import status_schema

NOW = 1_700_000_000.0
SCHEMA = status_schema()
REASON = re.compile(r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")

counts = st.integers(0, 9)
moments = st.none() | st.floats(NOW - 1000, NOW + 1000)
orders = st.builds(
    Orders,
    counts,
    st.just(()),
    st.sampled_from(["", "suspended by its spec", "activeDeadlineSeconds is over: 9 s"]),
)
progress = st.builds(
    Progress,
    phase=st.sampled_from(["", *JobPhase]), wall=st.sampled_from([0.0, NOW]), ring=counts, step=counts,
    total_steps=st.sampled_from([0, 9]), next_id=counts, seconds_left=st.sampled_from([0.0, 5.0]),
    goodput=st.sampled_from([0.0, 0.5]), metrics=st.just({"loss": 1.0}),
)  # fmt: skip
wishes = st.builds(
    lambda low, more, **rest: Wish(low, low + more, **rest),
    st.integers(1, 4), counts, replicas=st.none() | counts, suspend=st.booleans(),
    standby=st.integers(0, 2),
    ttl=st.none() | st.just(10.0), active_deadline=st.none() | st.just(100.0),
    clean_up=st.sampled_from(CleanUp), keeps_state=st.booleans(), hands_off=st.sampled_from(["", "a queue"]),
)  # fmt: skip
masters = st.builds(
    Master, st.just("m"), st.just("uid"), st.sampled_from(Stage), text=st.sampled_from(["", "was ended"]),
    broken=st.booleans(), until=st.floats(NOW - 100, NOW + 100), disrupted=st.booleans(), crashes=counts,
    orders=st.none() | orders, progress=st.none() | progress,
)  # fmt: skip
pods = st.builds(
    lambda *counts: Workers(*counts, pods=tuple(map(str, range(sum(counts))))), counts, counts, counts
)  # fmt: skip
told = st.builds(Told, st.sampled_from(Phase), moments, moments, progress, counts)
everything = st.builds(
    Known, wishes, told, st.none() | masters, pods, st.booleans(),
    st.none() | st.builds(Advice, counts, st.just("because"), starts=moments, ends=moments), counts,
)  # fmt: skip


@settings(deadline=None, max_examples=200)
@given(everything)
def test_every_verdict_makes_sense_and_its_status_fits_the_schema(known: Known):
    verdict = reconcile(known, NOW)
    wish, master = known.wish, known.master
    for action in verdict.actions:
        if isinstance(action, MakeMaster):
            assert master is None, "two masters would fight"
            assert action.progress.phase == "" and wish.minimum <= action.orders.workers <= wish.maximum
        if isinstance(action, Post):
            assert master is not None and master.stage in (Stage.COMING, Stage.RUNNING)
        if isinstance(action, DeleteMaster):
            assert master is not None and action.uid == master.uid
    assert verdict.target == 0 or wish.minimum <= verdict.target <= wish.maximum
    if known.told.phase in FINAL:
        assert verdict.phase is known.told.phase
    about = status.About(3, "a=b", known.workers.running, known.advice, ("a warning",))
    written = json.loads(json.dumps(status.written({}, verdict, about, NOW)))
    assert not list(unknown(written, SCHEMA)), written
    for one in written.get("conditions", ()):
        assert REASON.match(one["reason"]), one
    assert status.written(written, verdict, about, NOW + 5) == written or verdict.phase in FINAL


@pytest.mark.parametrize(
    ("standby", "running", "coming", "leaving", "phase", "ready"),
    [
        (0, 2, 0, 0, Phase.RUNNING, 2),
        (0, 3, 0, 0, Phase.SCALING, 3),
        (0, 2, 1, 0, Phase.SCALING, 2),
        (1, 3, 0, 0, Phase.RUNNING, 2),
        (1, 2, 1, 0, Phase.RUNNING, 2),  # who stands by has yet to come, or is Pending for ever
        (1, 2, 0, 0, Phase.RUNNING, 2),
        (1, 1, 1, 0, Phase.SCALING, 1),
        (1, 4, 0, 0, Phase.SCALING, 3),
        (1, 3, 0, 1, Phase.SCALING, 2),
    ],
)
def test_who_stands_by_is_no_reason_to_wait(standby, running, coming, leaving, phase, ready):
    said = Progress(phase=JobPhase.TRAINING, ring=2)
    master = Master("m", "uid", Stage.RUNNING, orders=Orders(2), progress=said)
    pods = Workers(running, coming, leaving)
    known = Known(Wish(1, 4, standby=standby), Told(Phase.RUNNING, NOW, progress=said), master, pods, True)
    verdict = reconcile(replace(known, advice=Advice(2, "because")), NOW)
    assert (verdict.phase, verdict.target) == (phase, 2)
    assert pods.training(2, standby) == ready
    if phase is Phase.SCALING:
        assert f"{ready} of 2 workers run" in verdict.message


@pytest.mark.parametrize("seconds", [253402300800.0, 1e17, float("inf"), float("nan"), -1e17])
def test_a_time_that_no_calendar_has_is_written_all_the_same(seconds):
    assert time_of(status.stamp(seconds)) in (status.LAST_SECOND, 0.0)
    assert status.stamp(NOW) == "2023-11-14T22:13:20Z"
