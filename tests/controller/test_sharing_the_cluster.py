"""The autoscaler live: what there is and what is asked for become orders for masters, with reasons."""

from __future__ import annotations

import asyncio
import threading

from edl_allreduce.controller.prices import FIRST_DELAY, MOST_PRICES
from edl_allreduce.core.autoscale import Policy
from edl_allreduce.core.controller.price import ANNOTATION
from edl_allreduce.spec.resource import path
from tests.controller.conftest import NAMESPACE, Lab


def test_a_service_that_waits_gets_room_by_draining_before_the_scheduler_must_preempt(lab: Lab, play):
    async def story():
        controller = lab.controller()
        lab.job(high=7)
        await lab.turn(controller)
        lab.works(size=4, step_seconds={4: 1.0})
        for _ in range(3):  # it grows as far as there is room
            await lab.turn(controller)
            lab.works(step_seconds={4: 1.0, 7: 0.6})
        assert lab.orders().workers == 7
        lab.service("nginx", cpu=3)
        await lab.turn(controller)
        orders = lab.orders()
        assert (orders.workers, orders.leaving) == (4, (4, 5, 6)), "the youngest leave"
        assert f"makes room for {NAMESPACE}/nginx" in lab.status()["plan"]["reason"]
        assert any("Scaled: 7→4" in event for event in lab.events())

    play(story())


def test_nobody_is_drained_for_a_service_for_which_the_scheduler_preempts_already(lab: Lab, play):
    async def story():
        controller = lab.controller()
        lab.job(high=7)
        await lab.turn(controller)
        lab.works(size=4, step_seconds={4: 1.0})
        for _ in range(3):
            await lab.turn(controller)
            lab.works(step_seconds={4: 1.0, 7: 0.6})
        where = lab.service("nginx", cpu=1)
        lab.api.patch(where, {"status": {"nominatedNodeName": "n0"}})
        lab.api.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/{lab.worker_names()[-1]}")
        await lab.turn(controller)
        assert lab.orders().leaving == (), "who leaves was chosen by the scheduler"
        assert lab.orders().workers >= 6

    play(story())


def test_a_new_job_gets_its_minimum_from_one_that_has_more(lab: Lab, play):
    async def story():
        controller = lab.controller()
        lab.job("first", high=7)
        await lab.turn(controller)
        for _ in range(3):
            await lab.turn(controller)
            lab.works("first", step_seconds={4: 1.0, 7: 0.6})
        assert lab.orders("first").workers == 7
        lab.job("second", low=2, high=7)
        await lab.turn(controller)
        assert lab.master("second") is not None
        assert lab.orders("first").workers <= 5
        assert lab.orders("second").workers >= 2
        assert lab.orders("first").workers + lab.orders("second").workers <= 7, "the masters need room, too"

    play(story())


def test_a_job_without_room_waits_and_says_for_what(lab: Lab, play):
    async def story():
        controller = lab.controller()
        lab.service("nginx", cpu=8, node="n0")
        lab.job(low=2)
        await lab.turn(controller)
        assert lab.master() is None
        assert lab.status()["phase"] == "Pending"
        assert "waits: 2 workers with 1 CPU each" in lab.condition("Created")["message"]
        lab.api.remove(f"/api/v1/namespaces/{NAMESPACE}/pods/nginx")
        await lab.turn(controller)
        assert lab.master() is not None

    play(story())


def test_step_times_at_the_sizes_it_has_run_decide_what_more_workers_are_worth(lab: Lab, play):
    async def story():
        controller = lab.controller()
        lab.job(high=7)
        await lab.turn(controller)
        lab.works(size=4, step_seconds={2: 0.9, 4: 1.0})
        await lab.turn(controller)
        assert lab.orders().workers < 4, "a worker that does not make it faster is given back"
        assert "more workers do not make it faster" in lab.status()["plan"]["reason"]

    play(story())


def test_hands_off_what_a_person_a_queue_or_a_switch_manages(lab: Lab, play):
    async def story():
        lab.node("n1", cpu=64)
        controller = lab.controller()
        lab.job(
            "scaled", workers={"min": 1, "max": 6, "replicas": 3, "resources": {"requests": {"cpu": "1"}}}
        )
        lab.job("queued", labels={"kueue.x-k8s.io/queue-name": "team-a"}, high=5)
        lab.job("switched", labels={"elasticdl.org/autoscale": "false"}, high=6)
        lab.job("elsewhere", managedBy="kueue.x-k8s.io/multikueue")
        await lab.turn(controller)
        assert lab.orders("scaled").workers == 3
        assert lab.orders("queued").workers == 5
        assert lab.orders("switched").workers == 6
        assert lab.master("elsewhere") is None and lab.status("elsewhere") == {}

    play(story())


def test_a_control_plane_that_lost_sight_of_its_nodes_moves_nobody(lab: Lab, play):
    async def story():
        controller = lab.controller()
        lab.job()
        await lab.turn(controller)
        lab.works()
        await lab.turn(controller)
        before = lab.orders()
        lost = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
        lab.api.patch("/api/v1/nodes/n0", lost)
        await lab.turn(controller)
        assert lab.orders() == before

    play(story())


def test_worker_pods_carry_what_their_loss_costs_now(lab: Lab, play):
    async def story():
        controller = lab.controller()
        lab.job(low=2, high=4)
        await lab.turn(controller)
        lab.works(size=4, pause=0.5, start_up=20.0)
        for _ in range(2):
            await lab.turn(controller)
        assert prices(lab) == {"3"}, "a pause of half a second for four"
        for worker in lab.worker_names()[2:]:
            lab.api.remove(f"/api/v1/namespaces/{NAMESPACE}/pods/{worker}")
        lab.tells(ring=2, wanted=2, pause=0.5, start_up=20.0)
        for _ in range(2):
            await lab.turn(controller)
        assert prices(lab) == {"42"}, "below its minimum it stands still until another worker started"

    play(story())


def test_many_prices_are_written_over_several_rounds_after_all_orders(lab: Lab, play):
    async def story():
        lab.node("n1", cpu=64)
        controller = lab.controller()
        lab.job(low=40, high=40)
        lab.job("other", low=2, high=8)
        await lab.turn(controller)
        lab.works(node="n1", size=40, pause=0.5)
        lab.works("other", pause=0.5, step_seconds={4: 1.0})
        lab.api.requests.clear()
        await lab.turn(controller)
        patched = [path.rpartition("/")[2] for method, path in lab.api.requests if method == "PATCH"]
        orders = [number for number, name in enumerate(patched) if name.endswith("-master")]
        notes = [number for number, name in enumerate(patched) if "-worker-" in name]
        assert len(notes) == MOST_PRICES
        assert orders and max(orders) < min(notes), "other grows, and does not wait for notes"
        await lab.turn(controller)
        assert len(prices(lab)) == 2, "all have one: those of two jobs"

    play(story())


async def two_jobs(lab: Lab):
    """One of forty workers, and a small one that comes after it; no worker has a price yet."""
    lab.node("n1", cpu=64)
    controller = lab.controller()
    lab.job("large", low=40, high=40)
    lab.job("small", low=2, high=8)
    await lab.turn(controller)
    lab.works("large", node="n1", size=40, pause=0.5)
    lab.works("small", pause=0.5, size=2)
    return controller


def test_a_job_that_refuses_prices_is_left_alone_and_the_others_have_theirs(lab: Lab, play):
    async def story():
        controller = await two_jobs(lab)
        refusal = lab.api.refuse("PATCH", "large-worker", 403, 1000, "admission webhook denied the request")
        await lab.turn(controller)
        await lab.turn(controller)
        assert 0 < refusal.fired < MOST_PRICES, "what was not under way yet is not tried"
        assert [priced(lab, name) for name in ("large", "small")] == [0, 2]
        fired = refusal.fired
        await lab.turn(controller, 0.0)
        assert refusal.fired == fired
        await lab.turn(controller, FIRST_DELAY)
        assert refusal.fired > fired, "it is tried again later"

    play(story())


def test_one_pod_that_refuses_its_price_takes_no_turn_from_the_others(lab: Lab, play):
    async def story():
        controller = await two_jobs(lab)
        refusal = lab.api.refuse("PATCH", "large-worker-0", 403, 1000, "admission webhook denied the request")
        for _ in range(4):
            await lab.turn(controller, 3600.0)
        assert refusal.fired and priced(lab, "large") == 39

    play(story())


def test_prices_that_hang_hold_no_round_and_no_order_up(lab: Lab, play):
    async def story():
        controller = await two_jobs(lab)
        goes_on, hung = threading.Event(), threading.Event()

        def hang(method: str, path: str) -> None:
            if method == "PATCH" and "-worker-" in path:
                hung.set()
                assert goes_on.wait(60)

        lab.api.before = hang
        try:
            await lab.turn(controller, notes=False)
            assert await asyncio.to_thread(hung.wait, 60)
            found = lab.api.get(path(NAMESPACE, "small"))
            lab.api.replace(path(NAMESPACE, "small"), {**found, "spec": {**found["spec"], "suspend": True}})
            await lab.turn(controller, notes=False)
            assert lab.orders("small").stop, "an order is written while notes hang"
        finally:
            goes_on.set()
        await controller.prices.written()

    play(story())


def priced(lab: Lab, job: str) -> int:
    """Workers with a price."""
    workers = [pod for pod in lab.api.all("pods") if f"-{job}-worker-" in pod["metadata"]["name"]]
    return sum(ANNOTATION in pod["metadata"].get("annotations", {}) for pod in workers)


def prices(lab: Lab) -> set[str]:
    workers = [pod for pod in lab.api.all("pods") if "worker" in pod["metadata"]["name"]]
    return {pod["metadata"]["annotations"]["controller.kubernetes.io/pod-deletion-cost"] for pod in workers}


def test_without_an_autoscaler_each_job_has_its_maximum(lab: Lab, play):
    async def story():
        controller = lab.controller(policy=None)
        lab.job(high=40)
        await lab.turn(controller)
        assert lab.orders().workers == 40
        assert "plan" not in lab.status()

    play(story())


def test_a_job_is_suspended_only_if_it_can_go_on_later(lab: Lab, play):
    async def story():
        controller = lab.controller(policy=Policy())
        for name, directory in (("keeps", "/ckpt"), ("loses", "")):
            lab.job(name, low=3, high=3, output={"checkpointDir": directory} if directory else {})
        await lab.turn(controller)
        for name in ("keeps", "loses"):
            lab.works(name)
        await lab.turn(controller)
        lab.service("important", cpu=7, priority=1000)
        await lab.turn(controller)
        assert lab.orders("keeps").stop.startswith("suspended by the autoscaler")
        assert lab.orders("loses").stop == ""
        assert "no output.checkpointDir" in str(lab.status("loses"))

    play(story())


def test_a_job_with_a_standby_runs_and_grows_around_it(lab: Lab, play):
    """The node has room for seven workers beside the master."""

    async def story():
        controller = lab.controller()
        lab.job(high=8, elasticity={"standby": 1})
        await lab.turn(controller)
        assert lab.orders().workers == 4
        lab.works(size=5)
        lab.tells(ring=4, wanted=4, next_id=5, step_seconds={4: 1.0})
        await lab.turn(controller)
        assert lab.orders().workers == 6, "it grows, and the room of the one that stands by is taken"
        lab.works(size=7)
        lab.tells(ring=6, wanted=6, next_id=7, step_seconds={4: 1.0, 6: 0.7})
        await lab.turn(controller)
        assert lab.orders().workers == 6 and lab.status()["phase"] == "Running"
        assert lab.status()["workers"] == {"ready": 6, "target": 6}
        assert controller.figures.workers == {f"{NAMESPACE}/job": (6, 6)}
        assert "its workers still start" not in lab.status()["plan"]["reason"]

    play(story())
