"""How far a job is: totals that stay true, the freshest step, lines of progress, the summary at the end."""

from __future__ import annotations

import math

import pytest

from edl_allreduce.core.goodput import GoodputReport
from edl_allreduce.core.progress import Length, Place, Stopwatch, duration
from edl_allreduce.core.schedule import Order, Schedule
from edl_allreduce.core.status import Tally
from edl_allreduce.master.report import Told, next_line, progress_line, summary, time_left
from tests.terminal.statuses import LENGTH, status, worker

# ---------------------------------------------------------------------------------------------- totals


@pytest.mark.parametrize("batches", [(48,), (32, 64), (64, 48, 16), (1000,), (7, 13)])
@pytest.mark.parametrize("max_step", [0, 11])
def test_the_total_is_what_the_job_will_have_made_whatever_batches_it_had(batches, max_step):
    records, epochs = 100, 4
    schedule = Schedule(Order(records), epochs, max_step)
    step = position = 0
    totals = []
    for number in range(10_000):
        if schedule.finished(step, position):
            break
        batch = batches[min(number // 3, len(batches) - 1)]  # another one after some steps
        if batch == batches[-1]:
            totals.append(Length(records, epochs, batch, max_step).total(step, position, ring=2))
        position += len(schedule.span(position, batch))
        step += 1
    assert set(totals) == {step}, "from the last change of the batch on the total never changes again"


def test_a_resume_with_a_smaller_batch_has_more_steps_than_a_job_of_that_batch_from_the_beginning():
    """3053 steps were made on two workers; the rest on three."""
    assert LENGTH.total(step=0, position=0, ring=1) == 200
    assert Length(1000, 10, batch=100).total(step=150, position=7500, ring=1) == 150 + 5 + 20


def test_with_a_batch_per_worker_a_larger_ring_takes_fewer_steps():
    length = Length(1000, 10, batch=50, per_worker=True)
    assert [length.total(0, 0, ring) for ring in (1, 2, 4)] == [200, 100, 50]
    assert [length.batch_of(ring) for ring in (0, 1, 4)] == [50, 50, 200]


def test_the_epoch_is_the_one_that_is_trained():
    assert [LENGTH.epoch(position) for position in (0, 999, 1000, 9999, 10_000)] == [1, 1, 2, 10, 10]


# -------------------------------------------------------------------------------------- where the ring is


def test_an_older_heartbeat_takes_nothing_back():
    place = Place().heard(2, 40, 400, 0.5).heard(2, 12, 120, 0.9)
    assert (place.step, place.position, place.loss) == (40, 400, 0.5)
    assert place.heard(1, 99, 990, 0.1) == place, "a ring that is over has nothing to say"


def test_a_ring_that_came_back_from_a_checkpoint_is_where_it_says():
    assert Place().heard(2, 40, 400, 0.5).heard(3, 10, 100).step == 10


def test_the_last_loss_is_known_until_there_is_another():
    assert Place().heard(1, 5, 50, 0.7).heard(1, 6, 60).loss == 0.7
    assert math.isnan(Place().heard(1, 0, 0).loss)


def test_a_stopwatch_counts_only_while_it_runs():
    watch = Stopwatch().turn(True, 10).turn(True, 12).turn(False, 15).turn(False, 20).turn(True, 30)
    assert watch.read(32) == 5 + 2
    assert watch.turn(False, 32).read(99) == 7


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(-1, "0.0 s"), (0.04, "0.0 s"), (4.1, "4.1 s"), (9.97, "10 s"), (59.6, "1 min 00 s"),
     (200, "3 min 20 s"), (3599.6, "1 h 00 min"), (7500, "2 h 05 min"), (270_000, "3 d 3 h")],
)  # fmt: skip
def test_a_duration_as_people_say_it(seconds, said):
    assert duration(seconds) == said


# ------------------------------------------------------------------------------------------------ lines


def test_a_line_of_progress_says_everything():
    assert progress_line(status()) == (
        "step 100 of 200 (50 %), epoch 6 of 10, loss 0.2500, 500 records/s, ring 2 of 2, 10 s left"
    )


def test_a_line_says_what_the_job_waits_for():
    waiting = status(
        phase="Waiting", waiting_for="2 workers are needed", steps_per_second=0.0, records_per_second=0.0
    )
    assert progress_line(waiting).endswith("ring 2 of 2, waiting: 2 workers are needed")


def test_tasks_are_counted_as_tasks():
    pulled = status(
        counts="task", length=None, step=3, total_steps=8, generation=0, loss=math.nan,
        records_per_second=0.0, steps_per_second=0.0, workers=[worker(0, rank=-1, standing="working")],
    )  # fmt: skip
    assert progress_line(pulled) == "task 3 of 8 (37 %)"


def told_at(statuses) -> list[float]:
    """When a line came, of a job that is looked at each second."""
    told, times = Told(), []
    for now, seen in enumerate(statuses):
        told, line = next_line(told, seen, float(now))
        if line:
            times.append(now)
    return times


def test_the_first_step_and_then_every_ten_seconds_are_worth_a_line():
    assert told_at(status(step=now, position=now) for now in range(25)) == [1, 11, 21]


def test_a_new_epoch_is_worth_a_line_but_short_ones_do_not_flood():
    slow = (status(step=1 + now, position=1000 * (now // 5)) for now in range(12))
    assert told_at(slow) == [0, 5, 10]
    quick = (status(step=1 + now, position=1000 * now) for now in range(7))
    assert told_at(quick) == [0, 5]


def test_a_job_that_stands_still_says_so_now_and_then():
    assert told_at([status()] * 130) == [0, 60, 120]


def test_what_is_over_or_has_not_begun_has_no_line():
    assert told_at([status(step=0)] * 100) == []
    assert told_at([status(phase="Succeeded")] * 100) == []


def test_nobody_guesses_how_long_a_paused_job_will_take():
    assert time_left(status(steps_per_second=0.0)) == ""
    assert time_left(status(step=200)) == ""


# ---------------------------------------------------------------------------------------------- summary


def test_the_summary_of_a_disturbed_and_resumed_job():
    tally = Tally(steps=150, records=7500, trained=15.0, pauses=[0.25, 1.5], losses=1)
    over = status(
        phase="Succeeded", step=200, position=10_000, tally=tally, loss=0.0123, audit="clean: 200 steps",
        metrics={"accuracy": 0.97}, metrics_step=200,
        goodput=GoodputReport(20.0, {"productive_step": 15.0, "program_startup": 5.0}),
    )  # fmt: skip
    assert summary(over, {"Checkpoint": "ckpt/version-200", "TensorBoard": ""}) == [
        "  Steps       200 of 200, 150 of them in this run",
        "  Epochs      10 of 10",
        "  Time        20 s, 15 s of it with a ring",
        "  Goodput     75 % of 20 s; lost: start of programs 5.0 s",
        "  Throughput  10.0 steps/s, 500 records/s on average",
        "  Loss        0.0123 in the last step",
        "  Metrics     accuracy 0.97 (model of step 200)",
        "  Disturbed   1 worker lost; 2 pauses, longest 1.5 s, together 1.8 s",
        "  Audit       clean: 200 steps",
        "  Checkpoint  ckpt/version-200",
    ]


def test_the_summary_of_a_job_that_made_no_step_divides_by_nothing():
    nothing = status(
        phase="Stopped", step=0, position=0, tally=Tally(), loss=math.nan, elapsed=0.0, total_steps=200
    )
    text = "\n".join(summary(nothing, {}))
    assert "Throughput" not in text and "Loss" not in text and "0 of 200" in text


def test_the_summary_of_an_evaluation_counts_tasks():
    over = status(
        phase="Succeeded", counts="task", length=None, step=2, total_steps=2, metrics={"accuracy": 0.9},
        metrics_step=40,
    )  # fmt: skip
    assert summary(over, {}) == [
        "  Tasks    2 of 2",
        "  Time     20 s",
        "  Metrics  accuracy 0.9 (model of step 40)",
    ]
