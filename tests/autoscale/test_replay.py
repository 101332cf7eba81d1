"""The replay: simulated time, stated costs, figures that can be computed by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from edl_allreduce.core.autoscale import Policy, Rule
from edl_allreduce.core.autoscale.replay import Outcome, Setting, replay, summary
from edl_allreduce.core.autoscale.workloads import BadWorkload, Submission, generate, read


def job(
    name: str, time: float = 0.0, workers: int = 4, seconds: float = 1000.0, b: float = 0.0
) -> Submission:
    return Submission(name, time, workers, maximum=8, steps=seconds, a=1.0 - b, b=b)


def completions(outcome: Outcome) -> dict[str, float]:
    return {one.name: one.completion for one in outcome.jobs}


FREE = Setting(slots=8, pause=0.0, start_up=0.0)


def test_a_rigid_job_takes_what_its_speed_says():
    found = replay([job("a")], Policy(rule=Rule.RIGID), FREE)
    assert completions(found) == {"a": pytest.approx(250.0)}


def test_start_up_and_pause_are_paid():
    setting = replace(FREE, start_up=30.0)
    assert completions(replay([job("a")], Policy(rule=Rule.RIGID), setting)) == {"a": pytest.approx(280.0)}
    # 4 workers at first, 8 as soon as they were measured; 20 s of start-up while 4 train, then 5 s of pause.
    setting = replace(FREE, start_up=20.0, pause=5.0)
    found = replay([job("a", seconds=10_000)], Policy(), setting)
    (one,) = found.jobs
    begun, joined = 20.0, 20.0 + 20.0
    left = 10_000 - 4 * (joined - begun)
    assert one.resizes == 1
    assert one.completion == pytest.approx(joined + 5.0 + left / 8, abs=0.01)


def test_two_jobs_that_ask_for_four_of_six():
    """Side by side they take at most 0.8 of the time of one after the other."""
    jobs = [replace(job(name, seconds=3_600), maximum=4) for name in "ab"]
    setting = Setting(slots=6, per_node=6, pause=0.1, start_up=5.0)
    ours, gang = (replay(jobs, Policy(rule=rule), setting) for rule in (Rule.SPEED, Rule.RIGID))
    assert max(completions(ours).values()) <= 0.8 * max(completions(gang).values())


def test_a_job_behind_a_large_one_waits_where_nothing_is_elastic():
    jobs = [job("a"), job("b", 1.0, workers=8), job("c", 2.0)]
    found = replay(jobs, Policy(rule=Rule.RIGID), FREE)
    pending = {one.name: one.pending for one in found.jobs}
    assert pending == {"a": 0.0, "b": pytest.approx(249.0), "c": pytest.approx(373.0)}


@pytest.mark.parametrize("rule", list(Rule))
def test_work_is_conserved(rule):
    """Slots in use times time is at least the work that was done, and every job ends."""
    jobs = generate(30, hours=1.0, seed=3)
    setting = Setting(slots=16)
    found = replay(jobs, Policy(rule=rule), setting)
    assert {one.name for one in found.jobs} == {one.name for one in jobs}
    span = max(one.ended for one in found.jobs) - min(one.submitted for one in found.jobs)
    assert found.utilisation * span * setting.slots >= sum(one.steps for one in jobs) * 0.99
    assert all(sample.busy <= setting.slots for sample in found.samples)
    assert all(early.now <= late.now for early, late in pairwise(found.samples))


def test_it_is_the_same_each_time():
    jobs = generate(20, hours=1.0)
    once, again = (replay(jobs, Policy(), Setting(slots=16)) for _ in range(2))
    assert once == again


def test_ours_beats_the_others_where_jobs_are_many():
    """The order of the published replay, on a small workload of our own."""
    jobs = generate(50, hours=4.0, seed=2)
    setting = Setting(slots=32)
    found = {rule: summary(rule, [replay(jobs, Policy(rule=rule), setting)]) for rule in Rule}
    ours, greedy, rigid = found[Rule.SPEED], found[Rule.GREEDY], found[Rule.RIGID]
    assert ours.mean_completion < 0.9 * greedy.mean_completion < rigid.mean_completion
    assert ours.worst_unfairness < 1.3 < greedy.worst_unfairness
    assert ours.mean_pending == 0


def test_jobs_that_outnumber_the_slots_all_end():
    jobs = [job(f"j{n}", time=float(n), seconds=100.0) for n in range(40)]
    found = replay(jobs, Policy(), Setting(slots=8))
    assert len(found.jobs) == 40


def test_a_job_of_eight_years_is_replayed_in_a_moment():
    found = replay([job("a", seconds=1e9)], Policy(rule=Rule.RIGID), FREE)
    assert completions(found)["a"] == pytest.approx(1e9 / 4)
    assert found.plans < 30_000


def test_no_jobs_no_trouble():
    assert replay([], Policy(), FREE).jobs == []


# ------------------------------------------------------------------------------------------------ workloads


def test_generated_workloads_are_the_same_for_everybody():
    first = generate()[0]
    assert (first.name, first.time, first.workers) == FIRST
    assert len(generate()) == 160
    assert generate(seed=2) != generate()


FIRST = ("small-0", 160.7, 4)

OWN = "name,time,workers,seconds,max,fixed\na,0,2,600,6,0.1\nb,5.5,1,60,,\n"


def test_our_columns():
    a, b = read(OWN)
    assert (a.maximum, a.step(1), a.step(9)) == (6, 1.0, pytest.approx(0.2))
    assert (b.time, b.maximum, b.b) == (5.5, 2, 0.02)


PUBLIC = "name,time,application,num_replicas,batch_size\nx,107,cifar,6,2048\n"
SPEEDS = '{"cifar|2048": {"W": 100, "max": 2, "st": {"1": 1.5, "2": 0.9}}}'


def test_public_columns():
    (x,) = read(PUBLIC, SPEEDS)
    assert (x.workers, x.maximum, x.steps, x.step(2)) == (6, 2, 100.0, 0.9)


@pytest.mark.parametrize(
    ("text", "speeds", "says"),
    [
        ("", None, "got an empty file"),
        ("name,time\na,1\n", None, "expected the columns name, time, workers, seconds"),
        ("name,time,workers,seconds\n", None, "no jobs"),
        ("name,time,workers,seconds\na,now,1,1\n", None, "line 2: time='now'; expected a number"),
        ("name,time,workers,seconds\na,0,1.5,1\n", None, "line 2: workers=1.5; expected a whole number"),
        ("name,time,workers,seconds\na,0,1,0\n", None, "line 2: seconds='0'; expected a number above 0"),
        ("name,time,workers,seconds\na,0,1\n", None, "line 2: seconds=''"),
        ("name,time,workers,seconds,fixed\na,0,1,1,1\n", None, "line 2: fixed=1.0"),
        ("name,time,workers,seconds\n,0,1,1\n", None, "line 2: a job without a name"),
        ("name,time,workers,seconds\na,0,1,1\na,0,1,1\n", None, "two jobs are called a"),
        (PUBLIC, None, "--speeds"),
        (PUBLIC, "{", "must be JSON"),
        (PUBLIC, "[]", "must be JSON"),
        (PUBLIC, '{"bert|1": {"W": 1, "st": {"1": 1}}}', "has no 'cifar|2048'; it has bert|1"),
        (PUBLIC, '{"cifar|2048": {"W": 1, "st": {"2": 1}}}', "needs seconds above 0 for 1, 2, 3"),
    ],
)
def test_wrong_files_are_told(text, speeds, says):
    with pytest.raises(BadWorkload, match=says.replace("|", r"\|")):
        read(text, speeds)
