"""What holds for every cluster, whatever jobs and services it has."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_allreduce.core.autoscale import Cluster, Job, Node, Plan, Pod, Policy, Role, Rule, plan
from edl_allreduce.core.autoscale.cluster import Taint, Toleration
from edl_allreduce.core.autoscale.jobs import Speed
from edl_allreduce.core.autoscale.value import Worth, assumed

from .builders import GPU, asks, carried_out, node, nodes, workers

OURS = (Rule.SPEED, Rule.EQUAL)
TEMPLATES = (asks(1), asks(2), asks(1, gpu=1), asks(3, tolerations=(Toleration("special"),)))
World = tuple[Cluster, list[Job], list[Pod]]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Nodes of several sorts, jobs in all states, services that run and that wait; nothing overcommitted."""
    there = [
        node(
            f"n{number}",
            draw(st.integers(0, 8)),
            draw(st.integers(0, 4)),
            ready=draw(st.integers(0, 9)) > 0,
            schedulable=draw(st.integers(0, 9)) > 0,
            taints=(Taint("special"),) if draw(st.integers(0, 4)) == 0 else (),
        )
        for number in range(draw(st.integers(1, 6)))
    ]
    free = {one.name: dict(one.allocatable) for one in there}
    pods: list[Pod] = []

    def put(pod: Pod) -> bool:
        place = draw(st.sampled_from(there))
        asked = pod.asks.requests
        fits = all(free[place.name][name] >= amount for name, amount in asked.items())
        if fits and pod.asks.admits(place.labels, place.taints):
            for name, amount in asked.items():
                free[place.name][name] -= amount
            pods.append(replace(pod, node=place.name))
            return True
        return False

    for number in range(draw(st.integers(0, 4))):
        pod = Pod(f"service-{number}", draw(st.sampled_from(TEMPLATES)), priority=draw(st.integers(0, 3)))
        put(replace(pod, terminating=draw(st.integers(0, 5)) == 0))
    jobs = []
    for number in range(draw(st.integers(0, 5))):
        name, template = f"job-{number}", draw(st.sampled_from(TEMPLATES))
        minimum = draw(st.integers(1, 3))
        curve = Speed(1.0, draw(st.sampled_from([0.0, 0.02, 0.3])))
        sizes = draw(st.lists(st.integers(1, 12), max_size=4))
        seated = sum(
            put(Pod(f"{name}-{n}", template, role=Role.WORKER, job=name))
            for n in range(draw(st.integers(0, 6)))
        )
        jobs.append(
            Job(
                name,
                minimum,
                minimum + draw(st.integers(0, 9)),
                template,
                master=draw(st.sampled_from([None, asks(1)])),
                workers=max(0, seated + draw(st.sampled_from([0, 0, 0, -1, 1]))),
                settling=draw(st.integers(0, 4)) == 0,
                managed=draw(st.integers(0, 5)) > 0,
                weight=draw(st.sampled_from([0.5, 1.0, 3.0])),
                priority=draw(st.integers(0, 3)),
                remaining=draw(st.sampled_from([None, 10.0, 1e3, 1e5])),
                made=draw(st.sampled_from([0.0, 1e3])),
                submitted=draw(st.sampled_from([0.0, -300.0, -1e5])),
                measured={n: curve.step(n) * draw(st.floats(0.8, 1.2)) for n in sizes},
                pause=draw(st.sampled_from([0.0, 0.1, 30.0])),
                start_up=draw(st.sampled_from([0.0, 5.0, 60.0])),
                deadline=draw(st.sampled_from([None, None, 100.0, 1e5])),
            )
        )
    for number in range(draw(st.integers(0, 4))):
        pods.append(
            Pod(f"waits-{number}", draw(st.sampled_from(TEMPLATES)), priority=draw(st.integers(0, 3)))
        )
    return Cluster(there), jobs, pods


policies = st.builds(
    Policy,
    rule=st.sampled_from(OURS),
    max_load=st.sampled_from([0.7, 0.9, 1.0]),
    most_starts=st.sampled_from([0, 3, 256]),
    first_size=st.sampled_from([1, 4, 99]),
    suspend=st.booleans(),
)
many = settings(max_examples=50, deadline=None)


def used(there: Cluster, pods: list[Pod]) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {one.name: Counter() for one in there.nodes}
    for pod in pods:
        if pod.node is not None:
            found[pod.node].update(pod.asks.requests)
    return found


def after(found: Plan, jobs: list[Job], pods: list[Pod]) -> list[Pod]:
    return carried_out(found, jobs, pods)[1]


@given(world=worlds(), policy=policies)
@many
def test_a_plan_can_be_scheduled(world: World, policy: Policy) -> None:
    """Each new worker has a node that is ready, open and admits it, with room beside all that stays."""
    there, jobs, pods = world
    found = plan(there, jobs, pods, 50.0, policy)
    left = used(there, after(found, jobs, pods))
    by_name = {one.name: one for one in there.nodes}
    for job in jobs:
        decision = found.decisions[job.name]
        for place in decision.places:
            on = by_name[place]
            assert on.ready and on.schedulable and job.worker.admits(on.labels, on.taints)
            assert all(amount <= on.allocatable[name] for name, amount in left[place].items())
        if job.managed:
            mine = [p for p in pods if p.job == job.name and p.role is Role.WORKER and not p.terminating]
            alive = [pod for pod in mine if pod.node is not None and by_name[pod.node].ready]
            assert set(decision.drain) <= {pod.name for pod in alive}
            assert decision.target == len(alive) - len(decision.drain) + len(decision.places)


@given(world=worlds(), policy=policies)
@many
def test_sizes_keep_their_bounds(world: World, policy: Policy) -> None:
    there, jobs, pods = world
    found = plan(there, jobs, pods, 50.0, policy)
    for job in jobs:
        decision = found.decisions[job.name]
        if job.managed:
            assert decision.target == 0 or job.minimum <= decision.target <= job.maximum
        else:
            assert decision.target == job.workers and not decision.drain
        assert decision.reason


@given(world=worlds(), policy=policies)
@many
def test_the_load_that_is_wanted_is_not_exceeded_for_speed(world: World, policy: Policy) -> None:
    """Where more is in use, it is by services, minimums, and jobs that are left in peace."""
    there, jobs, pods = world
    found = plan(there, jobs, pods, 50.0, policy)
    assert found.load is not None
    for name, load in found.load.items():
        if load <= policy.max_load + 1e-9:
            continue
        above = [
            job
            for job in jobs
            if job.managed and found.targets[job.name] > job.minimum and job.worker.requests.get(name)
        ]
        assert not above, f"{name} at {load:.2f}: {found}"


@given(world=worlds(), policy=policies)
@many
def test_no_service_waits_while_a_job_has_more_than_its_minimum_where_it_would_fit(
    world: World, policy: Policy
) -> None:
    there, jobs, pods = world
    found = plan(there, jobs, pods, 50.0, policy)
    waiting = {one.pod for one in found.waiting}
    left = after(found, jobs, pods)
    spare = {job.name: found.targets[job.name] - job.minimum for job in jobs if job.managed}
    for pod in (pod for pod in pods if pod.name in waiting):
        for on in there.nodes:
            if not (on.ready and on.schedulable and pod.asks.admits(on.labels, on.taints)):
                continue
            room = Counter(on.allocatable)
            budget = dict(spare)
            for other in left:
                if other.node != on.name:
                    continue
                if other.role is Role.WORKER and not other.terminating and budget.get(other.job, 0) > 0:
                    budget[other.job] -= 1
                else:
                    room.subtract(other.asks.requests)
            assert any(room[name] < amount for name, amount in pod.asks.requests.items()), (pod.name, on.name)


@given(world=worlds(), policy=policies)
@many
def test_it_comes_to_rest(world: World, policy: Policy) -> None:
    """Carry it out, plan again, and so on: when nothing else changes, soon nothing is left to change."""
    there, jobs, pods = world
    for _ in range(12):
        found = plan(there, jobs, pods, 50.0, policy)
        if not found.changes:
            return
        jobs, pods = carried_out(found, jobs, pods)
        jobs = [replace(job, settling=False) for job in jobs]
    pytest.fail(f"still moving after 12 plans: {found}")


@given(world=worlds(), policy=policies)
@many
def test_the_same_world_gives_the_same_plan(world: World, policy: Policy) -> None:
    assert plan(*world, 50.0, policy) == plan(*world, 50.0, policy)


@given(world=worlds(), policy=policies)
@many
def test_nobody_grows_for_less_than_it_costs(world: World, policy: Policy) -> None:
    """Growth of a job whose speed is known saves more than `reluctance` times its pause and start-up."""
    there, jobs, pods = world
    found = plan(there, jobs, pods, 50.0, policy)
    for job in jobs:
        target = found.targets[job.name]
        if job.managed and job.known and 0 < job.workers < target > job.minimum and job.deadline is None:
            assert job.time_left(target, policy.reluctance) < job.time_left(job.workers), found


@given(world=worlds(), policy=st.builds(Policy, max_load=st.sampled_from([0.9, 1.0])))
@many
def test_workers_move_only_to_where_they_count_more(world: World, policy: Policy) -> None:
    """Where nobody waits and everybody has a minimum, the sum of what sizes are worth never falls."""
    there, jobs, pods = world
    pods = [pod for pod in pods if pod.node is not None and pod.role is Role.WORKER]
    alive = Counter(pod.job for pod in pods if any(n.name == pod.node and n.ready for n in there.nodes))
    jobs = [
        replace(job, workers=alive[job.name], deadline=None, managed=True, master=None)
        for job in jobs
        if job.minimum <= alive[job.name] <= job.maximum
    ]
    pods = [pod for pod in pods if any(job.name == pod.job for job in jobs)]
    policy = replace(policy, max_load=1.0)
    found = plan(there, jobs, pods, 50.0, policy)
    share = sum(job.workers for job in jobs) / max(1, len(jobs))
    held = [assumed(job, policy) for job in jobs]
    worth = {job.name: Worth(job, policy, job.lateness(share, 50.0)) for job in held}
    before = sum(worth[job.name].of(job.workers) for job in jobs)
    assert sum(worth[job.name].of(found.targets[job.name]) for job in jobs) >= before - 1e-9


@given(world=worlds(), load=st.sampled_from([0.5, 0.9, 1.0]))
@many
def test_the_published_rule_ends_here_and_keeps_its_bounds(world: World, load: float) -> None:
    there, jobs, pods = world
    found = plan(there, jobs, pods, 50.0, Policy(rule=Rule.GREEDY, max_load=load))
    seated = Counter(pod.job for pod in pods if pod.role is Role.WORKER)
    for job in jobs:  # it does not touch a job whose workers still start, whatever it has
        assert not job.managed or found.targets[job.name] <= max(job.maximum, seated[job.name])


# --------------------------------------------------------------------------- more of something, never less


@st.composite
def simple(draw: st.DrawFn) -> list[Job]:
    """Jobs of one size of worker, from nothing, with speeds that are known and have no bumps."""
    fixed = draw(st.lists(st.sampled_from([0.01, 0.05]), min_size=1, max_size=5))
    return [
        Job(
            f"job-{n}",
            1,
            draw(st.integers(1, 12)),
            asks(1),
            weight=draw(st.sampled_from([0.5, 1.0, 2.0])),
            remaining=draw(st.sampled_from([1e3, 1e4, 1e5])),
            measured={size: 1 / size + b for size in range(1, 13)},
        )
        for n, b in enumerate(fixed)
    ]


@given(jobs=simple(), cpus=st.integers(5, 40), rule=st.sampled_from(OURS))
@many
def test_more_capacity_gives_nobody_less(jobs: list[Job], cpus: int, rule: Rule) -> None:
    policy = Policy(rule=rule)
    less = plan(nodes(1, cpus), jobs, [], 0.0, policy).targets
    more = plan(nodes(1, cpus + 1), jobs, [], 0.0, policy).targets
    assert all(more[name] >= size for name, size in less.items())


@given(jobs=simple(), cpus=st.integers(5, 40), rule=st.sampled_from(OURS))
@many
def test_more_weight_gives_a_job_no_less_and_others_no_more(jobs: list[Job], cpus: int, rule: Rule) -> None:
    policy = Policy(rule=rule)
    before = plan(nodes(1, cpus), jobs, [], 0.0, policy).targets
    heavier = [replace(jobs[0], weight=2 * jobs[0].weight), *jobs[1:]]
    now = plan(nodes(1, cpus), heavier, [], 0.0, policy).targets
    assert now[jobs[0].name] >= before[jobs[0].name]
    assert all(now[job.name] <= before[job.name] for job in jobs[1:])


@given(jobs=simple(), cpus=st.integers(5, 40))
@many
def test_from_nothing_the_greedy_choice_is_the_best_one(jobs: list[Job], cpus: int) -> None:
    """No single worker could be moved so that the sum of what sizes are worth rises."""
    policy = Policy()
    found = plan(nodes(1, cpus), jobs, [], 0.0, policy).targets
    worth = {job.name: Worth(job, policy) for job in jobs}
    gains = [worth[j.name].loss(found[j.name] + 1) for j in jobs if found[j.name] < j.maximum]
    losses = [worth[j.name].loss(found[j.name]) for j in jobs if found[j.name] > 1]
    if gains and losses and sum(found.values()) == cpus:
        assert max(gains) <= min(losses) * (1 + policy.margin) + 1e-9


def test_a_gpu_is_nothing_special() -> None:
    """The same world with another name for its devices gives the same plan."""
    job = Job("a", 1, 9, asks(1, gpu=1), workers=1)
    other = replace(job, worker=replace(job.worker, requests={"cpu": 1000, "example.com/thing": 1}))
    there = Node("n0", {"cpu": 9000, GPU: 3})
    same = Node("n0", {"cpu": 9000, "example.com/thing": 3})
    one = plan(Cluster([there]), [job], workers(job, {"n0": 1}), 0.0)
    two = plan(Cluster([same]), [other], workers(other, {"n0": 1}), 0.0)
    assert one.targets == two.targets == {"a": 3}


@given(world=worlds(), policy=policies)
@many
def test_one_that_stands_by_is_like_a_pod_of_somebody_else(world: World, policy: Policy) -> None:
    """It has its room, and nothing else is planned with it."""
    there, jobs, pods = world
    ready = {one.name for one in there.nodes if one.ready}
    spare: dict[str, str] = {}
    for number, job in enumerate(jobs):
        mine = [pod.name for pod in pods if pod.job == job.name and pod.node in ready]
        if len(mine) > 1:
            spare[mine[-1]] = job.name
            jobs[number] = replace(job, workers=len(mine) - 1)
    with_standby = [replace(job, standby=int(job.name in spare.values())) for job in jobs]
    strangers = [replace(p, role=Role.SERVICE, job="") if p.name in spare else p for p in pods]
    found = plan(there, with_standby, pods, 50.0, policy)
    assert found == plan(there, jobs, strangers, 50.0, policy)
    assert not {name for decision in found.decisions.values() for name in decision.drain} & spare.keys()
