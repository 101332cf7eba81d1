"""What a script can get wrong is said at once, in words that name the cure. One process, nobody is met."""

from __future__ import annotations

import pytest
import tensorflow as tf

from edl_allreduce.errors import UsageError

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def elastic():
    from edl_allreduce import elastic

    return elastic


def test_a_body_without_average(elastic):
    with (
        pytest.raises(UsageError, match=r"without step\.average"),
        elastic.join(records=8, batch_size=4, epochs=1, state=[tf.Variable(0.0)]) as job,
    ):
        for step in job.steps():
            with step:
                pass


def test_average_twice(elastic):
    with (
        pytest.raises(UsageError, match="exactly once"),
        elastic.join(records=8, batch_size=4, epochs=1, state=[tf.Variable(0.0)]) as job,
    ):
        for step in job.steps():
            with step:
                step.average([tf.constant(1.0)])
                step.average([tf.constant(1.0)])


def test_a_step_that_is_not_used_as_context(elastic):
    with (
        pytest.raises(UsageError, match="with step"),
        elastic.join(records=8, batch_size=4, epochs=1, state=[tf.Variable(0.0)]) as job,
    ):
        for step in job.steps(rehearse=False):
            del step


def test_a_loop_that_is_left_early(elastic):
    with (
        pytest.raises(UsageError, match=r"job\.stop"),
        elastic.join(records=8, batch_size=4, epochs=1, state=[tf.Variable(0.0)]) as job,
    ):
        for step in job.steps():
            with step:
                step.average([tf.constant(1.0)])
            if step.number == 1:
                break


def test_an_optimizer_without_variables(elastic):
    import keras

    with pytest.raises(UsageError, match=r"optimizer\.build"):
        elastic.join(records=8, state={"optimizer": keras.optimizers.Adam()})


def test_state_that_has_no_variables(elastic):
    with pytest.raises(UsageError, match=r"job\.values"):
        elastic.join(records=8, state={"epoch": 3})


def test_every_index_comes_once_per_epoch_and_the_rehearsal_leaves_no_trace(elastic):
    counter = tf.Variable(0.0)
    seen: list[int] = []
    with elastic.join(
        records=10, batch_size=4, epochs=2, state=[counter], values={"steps": 0}, save=lambda: "here"
    ) as job:
        for step in job.steps():
            with step:
                (one,) = step.average([tf.constant(1.0)], loss=2.0)
                assert step.loss == 2.0
                counter.assign_add(one)
                job.values["steps"] += 1
                if not step.rehearsal:
                    seen += step.indices.tolist()
    assert job.finished
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))
    assert (float(counter), job.values["steps"]) == (6.0, 6)


def test_a_job_that_is_stopped_ends_for_all_at_the_same_step(elastic):
    with elastic.join(records=100, batch_size=4, state=[tf.Variable(0.0)]) as job:
        for step in job.steps():
            with step:
                step.average([tf.constant(1.0)])
                if step.number == 2:
                    job.stop()
    assert step.number == 3, "the gradients of step 2 had left when it was called: the next one tells all"
