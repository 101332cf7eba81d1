"""From flags to what the machine of a job knows."""

from __future__ import annotations

import pytest

from edl_allreduce.core.job.state import Queue, Ring, begin
from edl_allreduce.master.options import options_of
from edl_allreduce.spec import parse_job

COMMON = [
    "--job_name=digits",
    "--model_zoo=model_zoo",
    "--model_def=digits.mlp.custom_model",
    "--num_workers=3",
]


@pytest.mark.parametrize(
    ("flags", "relaunch"),
    [
        ([], True),
        (["--aux_params=disable_relaunch=true"], False),
        (["--aux_params=disable_relaunch=True"], False),
        (["--aux_params=disable_relaunch=false"], True),
    ],
)
def test_disable_relaunch_reaches_the_machine(flags, relaunch):
    spec = parse_job("train", [*COMMON, "--training_data=data", *flags]).spec
    assert options_of(spec).relaunch is relaunch


def test_training_is_a_ring_and_evaluation_a_queue():
    train = parse_job("train", [*COMMON, "--training_data=data"]).spec
    assert isinstance(begin(options_of(train), 0.0).work, Ring)
    evaluate = parse_job(
        "evaluate",
        [*COMMON, "--validation_data=data", "--checkpoint_dir_for_init=ckpt", "--minibatch_size=8",
         "--num_minibatches_per_task=4"],
    ).spec  # fmt: skip
    options = options_of(evaluate)
    assert options.task_records == 32 and isinstance(begin(options, 0.0).work, Queue)
