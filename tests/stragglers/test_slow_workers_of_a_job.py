"""A slow worker in a whole job, in simulated time: it is named, and drained where the user wants it so."""

from __future__ import annotations

from dataclasses import replace

from edl_allreduce.core import events
from edl_allreduce.core.job.state import JobOptions
from edl_allreduce.testing.scene import OPTIONS, Scene

THREE = replace(OPTIONS, num_workers=3)


def trained(options: JobOptions, slow: int, seconds: int) -> Scene:
    scene = Scene(options).train()
    for actor in scene.actors.values():
        actor.compute_seconds = 0.3 if actor.worker_id == slow else 0.1
    return scene.wait(seconds)


def slow_ones(scene: Scene) -> list[tuple[int, bool]]:
    return [(e.worker_id, e.replaced) for e in scene.events if isinstance(e, events.WorkerSlow)]


def test_it_is_named_and_its_scores_are_shown():
    scene = trained(THREE, slow=1, seconds=45)
    assert slow_ones(scene) == [(1, False)]
    assert scene.told("straggler") == [
        "worker 1 is slow: its part of a step takes 300 ms, 3.0 times as long as that of the others"
    ]
    shown = {w.worker_id: w for w in scene.status.workers}
    assert shown[1].straggler and not shown[0].straggler
    assert round(shown[1].best_rank_score, 3) == 0.333
    assert shown[0].best_rank_score == 1.0 and shown[1].compute_seconds == 0.3
    assert scene.launched == [0, 1, 2], "nobody asked for more"


def test_with_the_flag_it_drains_and_another_takes_its_place():
    scene = trained(replace(THREE, replace_stragglers=2.0), slow=1, seconds=45)
    assert slow_ones(scene) == [(1, True)]
    assert scene.launched == [0, 1, 2, 3] and sorted(scene.alive) == [0, 2, 3]
    assert scene.told("drain") == ["worker 1 drains"]
    assert scene.status.tally.losses == 0, "it left in order"


def test_a_job_at_its_minimum_keeps_it():
    options = replace(THREE, replace_stragglers=2.0, min_workers=3)
    scene = trained(options, slow=1, seconds=45)
    assert slow_ones(scene) == [(1, False)] and scene.launched == [0, 1, 2]
