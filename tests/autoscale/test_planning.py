"""The rule: never in the way, placeable, calm, with reasons and answers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edl_allreduce.core.autoscale import Job, Policy, Rule, plan
from edl_allreduce.core.autoscale.cluster import Match, Pod, Requirement, Role, Taint, Toleration
from edl_allreduce.core.autoscale.jobs import fit
from edl_allreduce.core.autoscale.value import Worth

from .builders import GPU, asks, carried_out, cluster, node, nodes, service, workers


def trained(name, now, *, steps=10_000.0, a=1.0, b=0.01, sizes=(1, 2, 4, 8, 16), **more):
    """A job whose speed is known at these sizes."""
    measured = {n: a / n + b for n in sizes}
    fields = {"minimum": 1, "maximum": 16, "pause": 0.1, "start_up": 5.0, **more}
    return Job(name, worker=asks(1), workers=now, remaining=steps, measured=measured, **fields)


# ------------------------------------------------------------------------------------------------- speed


def test_the_fit_finds_both_parts_of_a_step():
    speed = fit({1: 1.05, 2: 0.55, 4: 0.30})
    assert (speed.a, speed.b) == (pytest.approx(1.0), pytest.approx(0.05))
    assert speed.step(8) == pytest.approx(0.175)


def test_one_size_is_taken_as_linear_and_none_as_well():
    assert fit({4: 0.5}).step(8) == pytest.approx(0.25)
    assert fit({}).step(4) == pytest.approx(0.25)


def test_a_size_that_was_run_counts_as_measured_whatever_the_fit_says():
    assert fit({1: 1.0, 2: 0.5, 5: 0.4}).step(5) == 0.4


@pytest.mark.parametrize("measured", [{2: 0.1, 4: 0.3}, {1: 1.0, 2: 0.4, 4: 0.1}, {3: 1.0, 3000: 1.0}])
def test_no_part_of_a_step_is_negative(measured):
    speed = fit(measured)
    assert speed.a >= 0 and speed.b >= 0


def test_growth_at_most_doubles_the_largest_size_seen():
    job = trained("a", 2, sizes=(1, 2), maximum=64)
    assert plan(nodes(8), [job], workers(job, {"n0": 2}), 0.0).targets == {"a": 4}


def test_a_job_that_was_never_measured_begins_small():
    assert plan(nodes(8), [Job("a", 1, 64, asks(1))], [], 0.0).targets == {"a": 4}


def test_a_worker_that_would_not_make_it_faster_is_not_given():
    job = replace(trained("a", 2), measured={1: 1.0, 2: 0.6, 4: 0.6, 8: 0.7})
    assert plan(nodes(2), [job], workers(job, {"n0": 2}), 0.0).targets == {"a": 2}


def test_a_worker_that_does_not_help_is_given_back():
    job = replace(trained("a", 8), measured={4: 0.6, 8: 0.7})
    found = plan(nodes(2), [job], workers(job, {"n0": 8}), 0.0)
    assert found.targets["a"] <= 4
    assert "more workers do not make it faster" in found.decisions["a"].reason


def test_it_jumps_over_a_size_that_is_slow():
    """5 workers need a second machine and are slower than 4; 8 are worth it."""
    job = replace(trained("a", 4, maximum=8), measured={2: 0.5, 4: 0.26, 5: 0.30, 6: 0.25, 8: 0.14})
    assert plan(nodes(2), [job], workers(job, {"n0": 4}), 0.0).targets == {"a": 8}


def test_the_job_that_scales_better_gets_more():
    good, poor = trained("good", 4, b=0.001), trained("poor", 4, b=0.3)
    pods = [*workers(good, {"n0": 4}), *workers(poor, {"n0": 4})]
    found = plan(nodes(1), [good, poor], pods, 0.0).targets
    assert found["good"] > found["poor"] >= 1


def test_the_job_nearer_its_end_gets_more():
    near, far = trained("near", 4, steps=2_000.0), trained("far", 4, steps=200_000.0)
    pods = [*workers(near, {"n0": 4}), *workers(far, {"n0": 4})]
    found = plan(nodes(1), [near, far], pods, 0.0).targets
    assert found["near"] > found["far"] >= 1


def test_a_job_that_got_less_than_the_others_so_far_gets_more():
    old = trained("old", 4, steps=8_000.0, made=2_000.0, submitted=0.0, start_up=0.0)
    new = trained("new", 4, steps=8_000.0, submitted=10_000.0, start_up=0.0)
    pods = workers(old, {"n0": 4}) + workers(new, {"n0": 4})
    targets = plan(nodes(1), [old, new], pods, 10_000.0).targets
    assert targets["old"] > targets["new"]
    assert sum(targets.values()) == 8
    forgetful = Policy(lateness=0)
    assert plan(nodes(1), [old, new], pods, 10_000.0, forgetful).targets == {"old": 4, "new": 4}


def test_lateness_is_counted_from_an_even_share_and_what_is_owed_is_bounded():
    job = trained("a", 4, steps=6_000.0, b=0.0, made=4_000.0, submitted=1_000.0, start_up=0.0)
    assert job.lateness(4.0, 2_000.0) == 1.0, "4,000 steps in 1,000 s is what four workers do"
    assert job.lateness(4.0, 3_500.0) == pytest.approx(1.6), "2,500 s + 1,500 s, and 2,500 s were due"
    assert job.lateness(0.5, 2_000.0) == 1.0, "it had more than half a worker"
    assert job.lateness(0.0, 9_000.0) == 1.0 == replace(job, remaining=None).lateness(4.0, 9_000.0)
    weights = [Worth(job, Policy(), late).of(5) / Worth(job, Policy()).of(5) for late in (1.5, 2.0, 500.0)]
    assert weights == [pytest.approx(2.25), pytest.approx(4.0), pytest.approx(4.0)]


def test_weight_counts():
    one, two = trained("one", 4), trained("two", 4, weight=3.0)
    pods = [*workers(one, {"n0": 4}), *workers(two, {"n0": 4})]
    found = plan(nodes(1), [one, two], pods, 0.0).targets
    assert found["two"] > found["one"] >= 1


def test_equal_splits_by_fulfilment_and_weight():
    jobs = [Job("a", 1, 9, asks(1)), Job("b", 1, 9, asks(1), weight=2.0), Job("c", 1, 3, asks(1))]
    found = plan(nodes(1, cpu=11), jobs, [], 0.0, Policy(rule=Rule.EQUAL)).targets
    assert found == {"a": 3, "b": 6, "c": 2} or found == {"a": 4, "b": 6, "c": 1}, found


# ------------------------------------------------------------------------------------------ never in the way


def test_a_service_that_waits_gets_room_by_draining_and_the_reason_says_so():
    job = trained("a", 8)
    pods = [*workers(job, {"n0": 8}), service("nginx", asks(3))]
    found = plan(nodes(1), [job], pods, 0.0)
    decision = found.decisions["a"]
    assert decision.target == 5 and len(decision.drain) == 3 and not found.waiting
    assert "makes room for nginx" in decision.reason and "costs" in decision.reason


def test_the_room_is_made_on_one_node():
    """Two workers on each of four nodes; a service of two CPUs needs one whole node, not two halves."""
    job = trained("a", 8)
    pods = [*workers(job, {f"n{n}": 2 for n in range(4)}), service("nginx", asks(2))]
    found = plan(nodes(4, cpu=2), [job], pods, 0.0)
    drained = {pod.node for pod in pods if pod.name in found.decisions["a"].drain}
    assert found.targets == {"a": 6} and len(drained) == 1


def test_services_take_the_minimum_of_jobs_with_less_priority_only():
    low, high = trained("low", 2, minimum=2, priority=1), trained("high", 2, minimum=2, priority=9)
    pods = [*workers(low, {"n0": 2}), *workers(high, {"n0": 2})]
    found = plan(nodes(1, cpu=4), [low, high], [*pods, service("nginx", asks(2), priority=5)], 0.0)
    assert found.targets == {"low": 0, "high": 2}
    found = plan(nodes(1, cpu=4), [low, high], [*pods, service("nginx", asks(3), priority=5)], 0.0)
    assert found.targets == {"low": 2, "high": 2}
    assert "nginx waits for 3 CPUs on one node" in str(found)


def test_a_new_job_gets_its_minimum_from_those_above_theirs():
    old, new = trained("old", 8), Job("new", 2, 4, asks(1))
    found = plan(nodes(1), [old, new], workers(old, {"n0": 8}), 0.0)
    assert found.targets["new"] >= 2 and sum(found.targets.values()) == 8
    assert "makes room for new" in found.decisions["old"].reason


def test_a_minimum_comes_whole_or_not_at_all_and_with_its_master():
    job = Job("a", 4, 8, asks(1), master=asks(1))
    assert plan(nodes(1, cpu=4), [job], [], 0.0).targets == {"a": 0}
    assert plan(nodes(1, cpu=5), [job], [], 0.0).targets == {"a": 4}
    master = Pod("a-master", asks(1), "n0", Role.MASTER, "a")
    assert plan(nodes(1, cpu=5), [job], [master], 0.0).targets == {"a": 4}


def test_a_master_that_was_lost_gets_room_and_its_job_trains_on():
    job = trained("a", 4, minimum=2, master=asks(1))
    found = plan(nodes(1, cpu=4), [job], workers(job, {"n0": 4}), 0.0)
    assert found.targets == {"a": 3} and found.room == {"a-master": "n0"}
    tight = replace(job, minimum=4)
    found = plan(nodes(1, cpu=4), [tight], workers(tight, {"n0": 4}), 0.0)
    assert found.targets == {"a": 4} and "its master waits for 1 CPU" in found.decisions["a"].reason


def test_when_minimums_do_not_fit_priority_comes_first_then_little_work():
    long, short = trained("long", 0, minimum=4, steps=1e6), trained("short", 0, minimum=4, steps=1e3)
    assert plan(nodes(1, cpu=4), [long, short], [], 0.0).targets == {"long": 0, "short": 4}
    first = replace(long, priority=1)
    assert plan(nodes(1, cpu=4), [first, short], [], 0.0).targets == {"long": 4, "short": 0}


def test_a_job_is_suspended_only_for_one_with_much_less_left():
    runs = trained("runs", 4, minimum=4, steps=1e4)
    pods = workers(runs, {"n0": 4})
    similar, short = (trained("new", 0, minimum=4, steps=steps) for steps in (0.8e4, 1e2))
    assert plan(nodes(1, cpu=4), [runs, similar], pods, 1.0).targets == {"runs": 4, "new": 0}
    found = plan(nodes(1, cpu=4), [runs, short], pods, 1.0)
    assert found.targets == {"runs": 0, "new": 4}
    assert "suspended" in found.decisions["runs"].reason
    assert plan(nodes(1, cpu=4), [runs, short], pods, 1.0, Policy(suspend=False)).targets["runs"] == 4


def test_only_those_are_suspended_whose_room_is_needed():
    """The last in the queue sits on a node that does not help: its pods stay where they are."""
    here, there = asks(1, selector={"zone": "1"}), asks(1, selector={"zone": "2"})
    world = cluster(node("n0", 2, labels={"zone": "1"}), node("n1", 2, labels={"zone": "2"}))
    first = replace(trained("first", 2, minimum=2, steps=1e5), worker=here)
    last = replace(trained("last", 2, minimum=2, steps=1e6), worker=there)
    short = replace(trained("short", 0, minimum=2, steps=10.0), worker=here)
    pods = [*workers(first, {"n0": 2}), *workers(last, {"n1": 2})]
    found = plan(world, [first, last, short], pods, 1.0)
    assert found.targets == {"first": 0, "last": 2, "short": 2}
    assert not found.decisions["last"].drain


def test_hands_off_what_somebody_else_manages():
    job = trained("a", 8, managed=False)
    found = plan(nodes(1), [job], [*workers(job, {"n0": 8}), service("nginx", asks(3))], 0.0)
    assert found.targets == {"a": 8} and found.waiting and not found.changes


# ------------------------------------------------------------------------------------------------ placeable


def test_nodes_that_refuse_are_not_counted():
    there = cluster(
        node("good", 2),
        node("tainted", 2, taints=(Taint("gpu", "yes"),)),
        node("cordoned", 2, schedulable=False),
        node("lost", 2, ready=False),
        node("soft", 2, taints=(Taint("slow", effect="PreferNoSchedule"),)),
    )
    assert plan(there, [Job("a", 1, 10, asks(1))], [], 0.0, Policy(first_size=99)).targets == {"a": 4}
    tolerant = Job("a", 1, 10, asks(1, tolerations=(Toleration("gpu"),)))
    assert plan(there, [tolerant], [], 0.0, Policy(first_size=99)).targets == {"a": 6}


def test_selectors_and_affinity_bind():
    there = cluster(node("a", 2, labels={"zone": "1", "cores": "8"}), node("b", 2, labels={"zone": "2"}))
    term = (Requirement("zone", Match.IN, ("2", "3")), Requirement("cores", Match.DOES_NOT_EXIST))
    for template, expected in (
        (asks(1, selector={"zone": "1"}), {"a"}),
        (asks(1, affinity=(term,)), {"b"}),
        (asks(1, affinity=((Requirement("cores", Match.GREATER, ("4",)),), term)), {"a", "b"}),
    ):
        found = plan(there, [Job("j", 1, 10, template)], [], 0.0)
        assert set(found.decisions["j"].places) == expected


def test_gaps_are_no_room():
    """Four nodes with half a CPU free each have no place for a worker of one."""
    pods = [service(f"s{n}", asks(0.5), f"n{n}") for n in range(4)]
    assert plan(nodes(4, cpu=1), [Job("a", 1, 4, asks(1))], pods, 0.0).targets == {"a": 0}


def test_terminating_pods_hold_their_room_and_are_no_workers():
    job = trained("a", 1)
    pods = workers(job, {"n0": 4})
    pods[1:] = [replace(pod, terminating=True) for pod in pods[1:]]
    assert plan(nodes(1, cpu=4), [job], pods, 0.0).targets == {"a": 1}


def test_workers_on_a_cordoned_node_may_stay_and_those_on_a_lost_one_need_another_place():
    job = trained("a", 4, maximum=4)
    there = cluster(node("n0", 4, schedulable=False), node("n1", 4))
    assert not plan(there, [job], workers(job, {"n0": 4}), 0.0).changes
    there = cluster(node("n0", 4, ready=False), node("n1", 4))
    found = plan(there, [job], workers(job, {"n0": 4}), 0.0)
    assert found.decisions["a"].places == ("n1",) * 4


def test_own_pods_that_wait_are_no_reason_to_disturb_others():
    """A replacement for a worker that was lost is Pending: no room for it, so the job has one less."""
    a, b = trained("a", 4, settling=True), trained("b", 4, settling=True)
    pods = [*workers(a, {"n0": 3}), *workers(b, {"n0": 4}), service("x", asks(1), "n0")]
    pods.append(Pod("a-9", a.worker, None, Role.WORKER, "a"))
    assert plan(nodes(1), [a, b], pods, 0.0).targets == {"a": 3, "b": 4}


def test_devices_are_left_to_those_who_need_them():
    there = cluster(node("gpu", 8, gpu=8), node("cpu", 8))
    jobs = [Job("c", 1, 8, asks(1)), Job("g", 8, 8, asks(1, gpu=1))]
    found = plan(there, jobs, [], 0.0, Policy(first_size=9))
    assert found.targets == {"c": 8, "g": 8} and set(found.decisions["g"].places) == {"gpu"}


def test_the_number_of_pods_on_a_node_counts():
    there = cluster(node("n0", 8))
    limited = replace(there.nodes[0], allocatable={**there.nodes[0].allocatable, "pods": 3})
    assert plan(cluster(limited), [Job("a", 1, 8, asks(1))], [], 0.0).targets == {"a": 3}


def test_any_extended_resource_counts():
    limited = replace(node("n0", 64), allocatable={"cpu": 64000, "example.com/fpga": 2})
    each = replace(asks(1), requests={"cpu": 1000, "example.com/fpga": 1})
    assert plan(cluster(limited), [Job("a", 1, 8, each)], [], 0.0).targets == {"a": 2}


# ----------------------------------------------------------------------------------------------------- calm


def test_no_change_when_the_saving_is_small_beside_its_cost():
    """From 8 to 16 workers would save 60 of 130 s; starting them takes 100."""
    job = trained("a", 8, steps=1_000.0, start_up=100.0, pause=1.0)
    pods = workers(job, {"n0": 8})
    assert plan(nodes(2), [job], pods, 0.0).targets == {"a": 8}
    assert plan(nodes(2), [replace(job, remaining=100_000.0)], pods, 0.0).targets == {"a": 16}


def test_no_growth_near_the_end():
    job = trained("a", 4, steps=150.0, start_up=0.0, pause=0.0)
    found = plan(nodes(2), [job], workers(job, {"n0": 4}), 0.0)
    assert found.targets == {"a": 4} and "about to end" in found.decisions["a"].reason


def test_a_job_whose_workers_still_start_is_left_in_peace():
    job = trained("a", 4, settling=True)
    assert not plan(nodes(2), [job], workers(job, {"n0": 4}), 0.0).changes
    rich = trained("rich", 7, settling=True)
    poor = trained("poor", 1)
    pods = [*workers(rich, {"n0": 7}), *workers(poor, {"n0": 1})]
    assert not plan(nodes(1), [rich, poor], pods, 0.0).changes


def test_one_plan_starts_a_bounded_number_of_workers():
    job = trained("a", 8, maximum=64, sizes=(8, 32))
    pods = workers(job, {"n0": 8})
    assert plan(nodes(8), [job], pods, 0.0, Policy(most_starts=3)).targets == {"a": 11}


def test_two_jobs_with_the_same_claim_do_not_hand_a_worker_to_and_fro():
    jobs = [trained("a", 4), trained("b", 3)]
    pods = [*workers(jobs[0], {"n0": 4}), *workers(jobs[1], {"n0": 3})]
    assert not plan(nodes(1, cpu=7), jobs, pods, 0.0).changes


@pytest.mark.parametrize("rule", [Rule.SPEED, Rule.EQUAL])
def test_a_plan_that_was_carried_out_is_followed_by_none(rule):
    jobs = [trained("a", 9, steps=5e4), trained("b", 2, steps=1e3), trained("c", 0), trained("d", 5, b=0.2)]
    pods = [*workers(jobs[0], {"n0": 8, "n1": 1}), *workers(jobs[1], {"n1": 2}), *workers(jobs[3], {"n1": 5})]
    policy = Policy(rule=rule)
    for _ in range(6):
        found = plan(nodes(2), jobs, pods, 0.0, policy)
        jobs, pods = carried_out(found, jobs, pods)
        if not found.changes:
            return
    pytest.fail(f"still moving: {found}")


# -------------------------------------------------------------------------------------- reasons and answers


def test_reasons_have_figures():
    a, b = trained("job-a", 7, steps=20_000.0), trained("job-b", 1, steps=20_000.0)
    pods = [*workers(a, {"n0": 7}), *workers(b, {"n0": 1})]
    said = str(plan(nodes(1), [a, b], pods, 0.0))
    assert "job-b: 1→4" in said and "% speed, saves" in said
    assert "job-a: 7→4: \N{MINUS SIGN}" in said and "costs" in said


def test_everybody_gets_a_reason():
    jobs = [trained("a", 16), Job("b", 30, 30, asks(1)), trained("c", 2, settling=True)]
    pods = [*workers(jobs[0], {"n0": 8, "n1": 8}), *workers(jobs[2], {"n2": 2})]
    found = plan(nodes(3, cpu=8), jobs, pods, 0.0)
    assert "it has its maximum" in found.decisions["a"].reason
    assert "30 workers with 1 CPU each do not fit" in found.decisions["b"].reason
    assert "still start" in found.decisions["c"].reason


def test_when_it_ends_and_when_a_queued_job_begins():
    runs = trained("runs", 4, minimum=4, maximum=4, steps=1_000.0)
    waits = trained("waits", 0, minimum=4, maximum=4, steps=1_000.0)
    found = plan(nodes(1, cpu=4), [runs, waits], workers(runs, {"n0": 4}), 100.0)
    end = 100.0 + 1_000 * 0.26
    assert found.decisions["runs"].ends == pytest.approx(end)
    assert found.decisions["waits"].starts == pytest.approx(end)
    assert found.decisions["waits"].ends == pytest.approx(end + 5.0 + 260)
    assert "it should begin in 4 min" in found.decisions["waits"].reason


def test_nobody_is_told_a_time_that_nobody_knows():
    found = plan(nodes(1), [Job("a", 1, 4, asks(1)), Job("b", 9, 9, asks(1))], [], 0.0)
    assert [(one.starts, one.ends) for one in found.decisions.values()] == [(None, None)] * 2


def test_a_deadline_gets_the_fewest_workers_that_meet_it():
    """10,000 steps in an hour: 0.36 s each, which is 3 workers. Beside a job that would take all."""
    dated = trained("dated", 1, deadline=3_700.0, start_up=1.0)
    other = trained("other", 7, steps=100.0, weight=99.0, pause=0.0)
    pods = [*workers(dated, {"n0": 1}), *workers(other, {"n0": 7})]
    found = plan(nodes(1), [dated, replace(other, remaining=1e4)], pods, 0.0)
    assert found.targets["dated"] >= 3
    assert found.decisions["dated"].ends <= 3_700
    late = replace(dated, deadline=10.0)
    said = plan(nodes(1), [late, other], pods, 0.0).decisions["dated"].reason
    assert "its deadline cannot be met" in said


@pytest.mark.parametrize("fields", [{"minimum": 0}, {"minimum": 3, "maximum": 2}, {"weight": 0.0}])
def test_a_job_that_cannot_be_is_refused(fields):
    with pytest.raises(ValueError, match="expected"):
        Job("a", **{"minimum": 1, "maximum": 2, "worker": asks(1), **fields})


@pytest.mark.parametrize(
    "fields", [{"max_load": 0.0}, {"max_load": 1.1}, {"margin": -1.0}, {"guess": float("nan")}]
)
def test_a_policy_that_cannot_be_is_refused(fields):
    with pytest.raises(ValueError, match="expected"):
        Policy(**fields)


def test_the_gpu_jobs_that_ask_four_of_six():
    """Two jobs that want 4 of 6 GPUs each run side by side instead of one after the other."""
    jobs = [Job(name, 1, 4, asks(1, gpu=1)) for name in "ab"]
    found = plan(cluster(node("n0", 99, gpu=6)), jobs, [], 0.0).targets
    assert found == {"a": 3, "b": 3}
    assert found["a"] * asks(1, gpu=1).requests[GPU] <= 6


# --------------------------------------------------------------------------------------------- standing by


def test_a_job_with_a_standby_grows_like_one_without():
    job = trained("a", 2, sizes=(1, 2), maximum=64, standby=1)
    found = plan(nodes(8), [job], workers(job, {"n0": 3}), 0.0)
    assert found.targets == {"a": 4} and found.decisions["a"].drain == ()


def test_nobody_is_promised_the_room_of_a_standby():
    """A job at its minimum has one worker and one that stands by, and the node is full with them."""
    job = trained("a", 1, maximum=1, standby=1)
    pods = workers(job, {"n0": 2})
    found = plan(cluster(node("n0", 2)), [job, trained("b", 0, maximum=1)], pods, 0.0)
    assert found.targets == {"a": 1, "b": 0} and found.decisions["a"].drain == ()
    found = plan(cluster(node("n0", 2)), [job], [*pods, service("web", asks(1), priority=0)], 0.0)
    assert found.room == {} and [one.pod for one in found.waiting] == ["web"]


def test_a_service_gets_room_from_a_worker_and_the_standby_stays():
    """As masters do it: who is in the ring goes, and who stands by is kept."""
    job = trained("a", 2, minimum=1, standby=1)
    found = plan(cluster(node("n0", 3)), [job], [*workers(job, {"n0": 3}), service("web", asks(1))], 0.0)
    assert found.targets == {"a": 1} and found.room == {"web": "n0"}
    assert found.decisions["a"].drain == ("a-1",)


def test_a_job_that_is_to_end_keeps_no_room_for_standbys():
    job = trained("a", 0, minimum=2, standby=1)
    found = plan(cluster(node("n0", 3)), [job], [*workers(job, {"n0": 3}), service("web", asks(3))], 0.0)
    assert found.room == {"web": "n0"}
