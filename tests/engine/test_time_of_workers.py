"""Where a worker's own time goes, by the ledger that its engine keeps."""

from __future__ import annotations

import functools

import pytest

from edl_allreduce import clock
from edl_allreduce.core.goodput import REFORM, Bucket
from edl_allreduce.testing.fake_ring import Break
from edl_allreduce.testing.numpy_trainer import NumpyEvaluator
from edl_allreduce.worker.loop.feeding import IndexFeed

SLOW_SECONDS = 0.03


def ledger(worker) -> dict[str, float]:
    return worker.orders.progress.ledger.read()


def test_who_computes_longer_makes_the_others_wait(crew):
    crew.add()
    crew.add(computing=lambda step: clock.sleep(SLOW_SECONDS))
    crew.run()
    quick, slow = map(ledger, crew.workers)
    assert quick[Bucket.STRAGGLER] > slow[Bucket.STRAGGLER]
    assert crew.workers[1].orders.progress.compute_seconds >= SLOW_SECONDS


def test_a_step_that_waits_for_its_records_is_stalled_by_input(crew):
    class Slow(IndexFeed):
        def take(self):
            clock.sleep(SLOW_SECONDS)
            return super().take()

    crew.add(feed=functools.partial(Slow))
    crew.run()
    assert ledger(crew.workers[0])[Bucket.INPUT] >= 10 * SLOW_SECONDS


@pytest.mark.parametrize("point", ["sum", "summed"])
def test_a_survivor_has_all_phases_of_its_pause_and_they_are_not_steps(crew, point):
    for _ in range(2):
        crew.add()
    crew.workers[0].ring.breaks = [Break(point, 4)]
    crew.run()
    for worker in crew.workers:
        spent = ledger(worker)
        assert all(spent[bucket] > 0 for bucket in REFORM[:-1]), "the first step need not take longer"
        assert spent[Bucket.STEP] > 0 and spent[Bucket.PREP] > 0


def test_a_newcomer_has_no_pause_but_a_way_in(crew):
    crew.add(computing=crew.at_step(3, lambda: crew.master.plan(*(w.orders for w in crew.workers))))
    newcomer = crew.add()
    crew.run(crew.workers[0])
    spent = ledger(newcomer)
    assert spent[Bucket.PREP] > 0 and not any(spent.get(bucket) for bucket in REFORM)


def test_evaluation_and_checkpoints_have_their_own(crew, tmp_path):
    crew.add(
        program={"evaluator": NumpyEvaluator(30, 7)},
        evaluation_steps=2,
        checkpoint_steps=2,
        checkpoint_dir=tmp_path / "checkpoints",
    )
    crew.run()
    spent = ledger(crew.workers[0])
    assert spent[Bucket.EVALUATION] > 0 and spent[Bucket.CHECKPOINT] > 0 and spent[Bucket.FINISHING] >= 0


def test_the_ledger_leaves_no_second_out_and_never_shrinks(crew):
    crew.add()
    progress = crew.workers[0].orders.progress
    earliest, before, latest = clock.now(), progress.ledger.read(), clock.now()
    crew.run()
    over, after, long_over = clock.now(), progress.ledger.read(), clock.now()
    grown = sum(after.values()) - sum(before.values())
    assert over - latest - 1e-6 <= grown <= long_over - earliest + 1e-6
    assert all(after.get(name, 0.0) >= spent for name, spent in before.items())
