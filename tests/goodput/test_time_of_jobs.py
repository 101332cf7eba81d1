"""Where the time of whole jobs goes, as the master's machine sees it, in simulated time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edl_allreduce.core import events, protocol
from edl_allreduce.core.goodput import Bucket, WorkerGoodput
from edl_allreduce.core.health import Activity
from edl_allreduce.core.job import queries
from edl_allreduce.testing.scene import OPTIONS, Scene


def spent(scene: Scene) -> dict[str, float]:
    seen = scene.status.goodput
    assert sum(seen.seconds.values()) == pytest.approx(seen.wall)
    assert sum(seen.worker_seconds.values()) == pytest.approx(seen.worker_wall)
    return seen.seconds


def beats(scene: Scene, **seconds: float) -> None:
    """Everybody in the ring tells a ledger that grew to this."""
    ledger = {Bucket[name].value: value for name, value in seconds.items()}
    for actor in [a for a in scene.actors.values() if a.alive and a.plan is not None]:
        assert actor.plan is not None
        pulse = protocol.Pulse(
            Activity.COMPUTING, actor.plan.generation, actor.step, 10 * actor.step, 0.5, 0.1, ledger=ledger
        )
        scene.say(actor.worker_id, pulse)


def test_workers_that_prepare_for_long_are_the_start_of_programs():
    scene = Scene()
    scene.script.prepares = False
    scene.start().wait(20)
    assert spent(scene)["program_startup"] == pytest.approx(20, abs=1)


def test_what_the_witness_tells_is_the_time_of_the_job():
    scene = Scene().train().wait(10)
    beats(scene, STEP=8.0, INPUT=2.0)
    seconds = spent(scene)
    assert seconds["productive_step"] == pytest.approx(8, rel=0.1)
    assert seconds["data_loading_sync"] == pytest.approx(2, rel=0.1)


def test_a_ring_that_is_too_small_waits_for_the_cluster_to_recover():
    scene = Scene(replace(OPTIONS, min_workers=2)).train().wait(5)
    beats(scene, STEP=5.0)
    scene.script.prepares = False
    scene.crash(1).wait(30)
    seconds = spent(scene)
    assert seconds["infrastructure_recovery_from_disruption"] == pytest.approx(30, abs=2)
    assert seconds["productive_step"] == pytest.approx(5, abs=1)


def test_a_ring_that_re_forms_at_once_does_not_wait_for_anybody():
    scene = Scene(replace(OPTIONS, num_workers=3)).train().wait(5)
    beats(scene, STEP=5.0)
    scene.script.prepares = False
    scene.crash(1).wait(1)
    beats(scene, STEP=5.5, NOTICE=0.2, JOIN=0.3)
    seconds, reforms = spent(scene), scene.status.goodput.reforms
    assert "infrastructure_recovery_from_disruption" not in seconds
    assert reforms["loss"]["reform_join"] == pytest.approx(0.3, rel=0.2)
    plans = [event for event in scene.events if isinstance(event, events.RingPlanned)]
    assert plans[-1].cause == "loss"


def test_empty_places_count_as_missing_capacity():
    scene = Scene(replace(OPTIONS, relaunch=False)).train()
    before = scene.now
    scene.crash(1).wait(20)
    missing = scene.status.goodput.worker_seconds["capacity_missing"]
    assert missing == pytest.approx(scene.now - before, abs=1)


def test_a_job_that_is_over_accounts_for_all_of_its_time():
    scene = Scene(steps=100).train()
    began = scene.state.began
    scene.until(lambda: scene.over)
    (told,) = [event for event in scene.events if isinstance(event, events.TimeAccounted)]
    assert sum(told.seconds.values()) == pytest.approx(told.wall) and told.wall <= scene.now - began
    kinds = [event.kind for event in scene.events]
    assert kinds[-2:] == ["goodput", "end"]


def by_hand() -> Scene:
    """Two workers that somebody started himself train together."""
    scene = Scene(replace(OPTIONS, num_workers=0)).comes(0).comes(1)
    return scene.until(lambda: scene.ring == 2).wait(5)


def dies(scene: Scene, worker_id: int) -> None:
    """Nobody tells the master how."""
    scene.actors[worker_id].alive = False
    scene.cut(worker_id)


def life_of(scene: Scene, worker_id: int) -> WorkerGoodput:
    return next(worker for worker in scene.status.goodput.workers if worker.worker_id == worker_id)


def test_a_lost_worker_that_nobody_keeps_is_gone():
    scene = by_hand()
    beats(scene, STEP=5.0)
    dies(scene, 1)
    scene.until(lambda: scene.ring == 1).wait(30)
    lost, other = life_of(scene, 1), life_of(scene, 0)
    assert lost.gone and not other.gone
    scene.wait(30)
    assert life_of(scene, 1).lived == lost.lived
    spent(scene)


def test_a_number_that_is_used_again_begins_another_life():
    scene = by_hand()
    beats(scene, STEP=500.0)
    dies(scene, 1)
    scene.until(lambda: scene.ring == 1)
    before = scene.status.goodput.worker_seconds["productive_step"]
    scene.comes(1, uid="another").until(lambda: scene.ring == 2).wait(10)
    beats(scene, STEP=501.0)
    again = life_of(scene, 1)
    assert not again.gone and again.lived < 15 and again.seconds["productive_step"] > 5
    assert scene.status.goodput.worker_seconds["productive_step"] > before
    spent(scene)


def test_of_a_re_form_the_slowest_survivor_is_kept_however_many_there_are():
    scene = Scene().train()
    for generation in (5, 6):
        for pause in (0.2, 0.5, 0.3):
            scene.say(0, protocol.Reformed(generation, 2, pause, 0.0, 0.0, 0.0, 0.0))
    assert [(r.generation, r.pause) for r in queries.result(scene.state).reforms] == [(5, 0.5), (6, 0.5)]
    assert scene.status.tally.pauses == [0.5, 0.5]
