"""A master follows the orders on its pod, tells how far its job is, and leaves when its pod is another's."""

from __future__ import annotations

import asyncio

import pytest

from edl_allreduce.cluster.kubernetes.watching import Changed, Listed, Removed
from edl_allreduce.core.controller import account, mail
from edl_allreduce.core.controller.account import Account
from edl_allreduce.core.controller.mail import Orders, Progress
from edl_allreduce.core.goodput import Bucket, GoodputReport
from edl_allreduce.core.progress import Length
from edl_allreduce.core.protocol import Scale, StopJob
from edl_allreduce.core.status import JobStatus, Tally, WorkerStatus
from edl_allreduce.errors import UsageError
from edl_allreduce.master import managed
from edl_allreduce.master.in_cluster import ClusterMaster
from edl_allreduce.master.managed import Mailbox
from edl_allreduce.testing.fake_api import FakeApi

PODS = "/api/v1/namespaces/team/pods"


def status(size: int = 2, **more) -> JobStatus:
    workers = [WorkerStatus(i, "host", "member", i, "training", 5) for i in range(size)]
    given = dict(
        job_name="job", phase="Training", wanted=size, minimum=1, generation=3, step=50, total_steps=100,
        loss=0.5, records_per_second=64.0, steps_per_second=4.0, waiting_for="", elapsed=20.0,
        workers=workers, events=[], position=320, length=Length(400, 2, 8),
        tally=Tally(50, 320, 15.0, [0.1, 0.3, 0.2]),
        goodput=GoodputReport(20.0, {Bucket.STEP: 15.0, Bucket.JOIN: 5.0}),
    )  # fmt: skip
    return JobStatus(**{**given, **more})


class FakeJob:
    def __init__(self) -> None:
        self.done: list[tuple] = []
        self.wanted = 2
        self.refuses = ""

    def status(self) -> JobStatus:
        return status(wanted=self.wanted)

    def scale(self, count: int, leaving: tuple[int, ...] = ()) -> None:
        if self.refuses:
            raise UsageError(self.refuses)
        self.wanted = count
        self.done.append(("scale", count, leaving))

    def stop(self, reason: str) -> None:
        self.done.append(("stop", reason))

    def note(self, kind: str, text: str) -> None:
        self.done.append(("note", text))


def mailbox(orders: Orders | None = None):
    api, job = FakeApi(), FakeJob()
    annotations = orders.annotations() if orders is not None else {}
    pod = api.create(PODS, {"metadata": {"name": "m", "annotations": annotations}, "spec": {}})
    made = Mailbox(
        api, pod, job, next_id=lambda: 7, wanted=lambda count: job.done.append(("remember", count)),
        leave=lambda why: job.done.append(("leave", why)),
    )  # fmt: skip
    return api, job, pod, made


def ordered(pod: dict, orders: Orders) -> Changed:
    return Changed({**pod, "metadata": {**pod["metadata"], "annotations": orders.annotations()}})


def test_orders_are_followed_once_and_those_of_an_earlier_term_not_at_all():
    _, job, pod, box = mailbox()
    box._hear(ordered(pod, Orders(5, (), "", 2)))
    box._hear(ordered(pod, Orders(5, (), "", 2)))
    box._hear(ordered(pod, Orders(9, (), "", 1)))
    assert job.done == [("scale", 5, ()), ("remember", 5)]
    box._hear(ordered(pod, Orders(3, (1, 4), "", 2)))
    assert job.done[2] == ("scale", 3, (1, 4))
    box._hear(ordered(pod, Orders(3, (), "suspended by its spec", 3)))
    assert job.done[-1] == ("stop", "suspended by its spec")


def test_orders_that_the_job_refuses_are_a_note_and_not_remembered():
    _, job, pod, box = mailbox()
    job.refuses = "the job is finishing"
    box._hear(ordered(pod, Orders(5)))
    assert job.done == [("note", "the controller wants 5 workers: the job is finishing")]


def test_who_asks_the_master_for_another_size_is_sent_to_the_trainingjob():
    _, job, _, box = mailbox()
    master = ClusterMaster.__new__(ClusterMaster)  # without an API server
    master._mailbox = box
    with pytest.raises(UsageError) as refused:
        asyncio.run(master._answer(Scale(3)))
    assert "elasticdl scale --job_name=job --namespace=team --num_workers=3" in str(refused.value)
    assert "kubectl scale tj job -n team --replicas=3" in str(refused.value)
    assert job.done == []
    box.check(StopJob("enough"))


def test_a_master_whose_pod_is_gone_or_replaced_leaves_the_job_to_the_next_one():
    _, _, other, _ = mailbox()
    for news in (Removed, lambda pod: Listed([], 0.0), lambda pod: Changed(other)):
        _, job, pod, box = mailbox()
        box._hear(news(pod))
        assert [what for what, *_ in job.done] == ["leave"]


def test_through_a_watch_and_back_into_the_annotation():
    async def story():
        api, job, _, box = mailbox(Orders(2))
        box.start()
        api.patch(f"{PODS}/m", {"metadata": {"annotations": Orders(4).annotations()}})
        async with asyncio.timeout(30):
            while ("scale", 4, ()) not in job.done:
                await asyncio.sleep(0.01)
            found = None
            while found is None:
                annotations = api.get(f"{PODS}/m")["metadata"]["annotations"]
                found = mail.read_progress(annotations.get(mail.PROGRESS, ""))
                await asyncio.sleep(0.01)
        assert (found.step, found.ring, found.next_id, found.epoch) == (50, 2, 7, 1)
        await box.close()
        api.close()

    asyncio.run(story())


def test_progress_is_told_again_after_something_unforeseen_went_wrong(monkeypatch, caplog):
    async def story():
        monkeypatch.setattr(managed, "LOOK_SECONDS", 0.01)
        api, _, _, box = mailbox(Orders(2))
        failures = []

        def break_once(method: str, path: str) -> None:
            if method == "PATCH" and not failures:
                failures.append(path)
                raise RuntimeError("a cable was bitten")

        api.before = break_once
        box.start()
        async with asyncio.timeout(30):
            while mail.PROGRESS not in api.get(f"{PODS}/m")["metadata"]["annotations"]:
                await asyncio.sleep(0.01)
        assert failures and "a cable was bitten" in caplog.text
        await box.close()
        api.close()

    asyncio.run(story())


# ------------------------------------------------------------------------------------------- the account


def test_the_report_says_what_an_autoscaler_needs():
    said = account.progress(Account(0, {2: 0.25}, start_ups=(8.0,)), status(), 1000.0, 7)
    assert (said.ring, said.step, said.total_steps, said.seconds_left) == (2, 50, 100, 12.5)
    assert (said.pause, said.start_up, said.goodput) == (0.2, 8.0, 0.75)
    assert said.step_seconds == {2: 0.25}
    pulled = status(0, counts="task", workers=[WorkerStatus(0, "h", "working", -1, "", 0)])
    assert account.progress(Account(), pulled, 0.0, 1).ring == 1


def test_step_times_are_taken_only_of_a_ring_that_has_settled():
    first = account.sample(Account(), status(), 100.0)
    assert account.sample(first, status(), 109.0).step_seconds == {}
    assert account.sample(first, status(), 110.0).step_seconds == {}, "no step was made in it"
    second = account.sample(first, status(step=55, steps_per_second=4.0), 110.0)
    assert second.step_seconds == {2: 0.25}
    reformed = account.sample(second, status(3, generation=4, steps_per_second=9.0), 111.0)
    assert reformed.step_seconds == {2: 0.25}
    waiting = account.sample(reformed, status(3, generation=4, phase="Waiting"), 200.0)
    assert 3 not in waiting.step_seconds
    carried = account.begin(Progress(step_seconds={2: 0.25}, start_up=6.0))
    assert carried.step_seconds == {2: 0.25} and carried.start_ups == (6.0,)


def test_a_size_that_is_new_is_measured_as_soon_as_a_few_steps_were_made_with_it():
    first = account.sample(Account(), status(step=50), 100.0)
    assert account.sample(first, status(step=54), 112.0).step_seconds == {}, "too few steps"
    assert account.sample(first, status(step=90), 102.0).step_seconds == {}, "too early"
    known = account.sample(first, status(step=55, steps_per_second=4.0), 103.0)
    assert known.step_seconds == {2: 0.25}
    assert account.sample(known, status(step=70, steps_per_second=1.0), 107.0).step_seconds == {2: 0.25}
    assert account.sample(known, status(step=90, steps_per_second=1.0), 113.0).step_seconds[2] > 0.25


def test_a_size_that_is_planned_is_not_measured_with_steps_of_the_ring_before():
    known = account.sample(Account(), status(step=50), 100.0)
    known = account.sample(known, status(step=60, steps_per_second=4.0), 105.0)
    ahead = {"size": 3, "generation": 4, "changing": True}
    for step, now in ((61, 106.0), (70, 110.0), (90, 120.0)):
        known = account.sample(known, status(**ahead, step=step, steps_per_second=4.0), now)
    assert known.step_seconds == {2: 0.25}, "the old ring trains on"
    known = account.sample(known, status(3, generation=4, step=91, steps_per_second=4.0), 121.0)
    assert account.sample(known, status(3, generation=4, step=94), 135.0).step_seconds == {2: 0.25}
    known = account.sample(known, status(3, generation=4, step=96, steps_per_second=5.0), 135.0)
    assert known.step_seconds == {2: 0.25, 3: 0.2}


def test_after_a_set_back_step_times_are_taken_at_once():
    known = account.sample(Account(), status(step=5000), 100.0)
    known = account.sample(known, status(step=1000), 101.0)
    known = account.sample(known, status(step=1005, steps_per_second=4.0), 111.0)
    assert known.step_seconds == {2: 0.25}


def test_how_long_workers_take_to_start_does_not_count_while_they_wait_for_room():
    def workers(*known: tuple[int, str, int, str]):
        return status(0, workers=[WorkerStatus(i, "", at, rank, text, 0) for i, at, rank, text in known])

    seen = account.watch(
        Account(), workers((0, "starting", -1, ""), (1, "starting", -1, "waits: no room")), 10.0
    )
    seen = account.watch(seen, workers((0, "waiting", -1, "idle"), (1, "starting", -1, "")), 14.0)
    seen = account.watch(seen, workers((0, "member", 0, "training"), (1, "member", 1, "training")), 18.0)
    assert seen.start_ups == (8.0, 4.0)
    adopted = account.watch(Account(2), workers((0, "starting", -1, "")), 10.0)
    assert account.watch(adopted, workers((0, "member", 0, "training")), 11.0).start_ups == ()
