"""How flags become a loop: the batch, what the master is told, which records are left out."""

from __future__ import annotations

import pytest

from edl_allreduce.core.schedule import Order, Schedule
from edl_allreduce.errors import BadRecord, DataError
from edl_allreduce.spec import parse_job
from edl_allreduce.worker.loop.assemble import Program, batch_of, ready_message
from edl_allreduce.worker.loop.feeding import boundary_at
from edl_allreduce.worker.records import read_records, tell_left_out


def spec_of(**flags):
    given = {"job_name": "a", "model_def": "a.b", "training_data": "d", "minibatch_size": 4, **flags}
    return parse_job("train", [f"--{name}={value}" for name, value in given.items()]).spec


@pytest.mark.parametrize(
    ("flags", "given", "batches"),
    [
        ({"num_workers": 3}, None, [12, 12, 12]),
        ({"num_workers": 3, "elastic_batch": "worker"}, None, [4, 8, 12]),
        ({"num_workers": 3}, 30, [30, 30, 30]),
    ],
)
def test_the_batch_of_a_step_in_rings_of_one_to_three(flags, given, batches):
    batch = batch_of(spec_of(**flags), given)
    assert [batch.of(size) for size in (1, 2, 3)] == batches


def test_what_the_master_is_told_of_an_own_loop_with_a_batch_of_its_own(crew):
    """The flags stay as they are: nobody pretends to be one worker with a large minibatch."""
    spec = spec_of(num_workers=3, seed=5)
    worker = crew.add(program={"batch_size": 15}, num_workers=3)
    schedule = Schedule(Order(30), epochs=2)
    program = Program(worker.trainer, schedule, worker.engine.open_feed, worker.engine.export, "data")
    told = ready_message(spec, program, worker.engine)
    assert (told.global_batch, told.total_steps, told.fingerprint) == (15, 4, "data-5-1")
    assert told.length is not None
    assert (told.length.batch, told.length.per_worker) == (15, False)


def test_where_the_next_ring_begins_after_a_voted_boundary():
    schedule = Schedule(Order(20), epochs=2)
    assert boundary_at(schedule, (1, 6), 6, 3) == (3, 18)
    assert boundary_at(schedule, (2, 12), 6, 4) == (4, 20), "no batch goes across two epochs"
    assert boundary_at(schedule, (3, 18), 6, 3) is None, "it is here"
    assert boundary_at(schedule, (7, 38), 6, 9) is None, "the job is over before"


class Source:
    """Records that are their indices as text; 2 and 5 are bad."""

    def __len__(self) -> int:
        return 8

    def read(self, indices):
        for index in indices:
            if index in (2, 5):
                raise BadRecord(f"record {index} is bad", index=index, path="file")
        return [str(index).encode() for index in indices]


def test_bad_records_are_left_out_where_some_are_allowed():
    read = read_records(Source(), [7, 5, 1, 2], bad_allowed=3)
    assert read.records == [b"7", b"1"]
    assert (read.indices, read.left_out, read.count) == ([7, 1], [5, 2], 2)
    assert sorted(problem.index for problem in read.problems) == [2, 5]
    told = []
    tell_left_out(read, of="evaluation", data="validation data", send=told.append)
    assert [set(message.records) for message in told] == [{2, 5}]


def test_where_none_is_allowed_the_first_bad_record_ends_the_job():
    assert read_records(Source(), range(2), bad_allowed=0).count == 2
    with pytest.raises(DataError, match="leave bad records out with --max_bad_records=N"):
        read_records(Source(), range(4), bad_allowed=0)
