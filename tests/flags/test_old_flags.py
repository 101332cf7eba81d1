"""Scripts written for ElasticDL and its older documents go on working; what changed is said in one line."""

import pytest

from edl_allreduce.errors import UsageError
from edl_allreduce.spec import Strategy, parse_job, to_argv
from edl_allreduce.spec.flags import help_text
from edl_allreduce.spec.legacy import LEGACY
from tests.tutorial import GKE

TRAIN = ["--job_name=digits", "--model_def=mnist.cnn.custom_model", "--training_data=/data"]


def notices_of(*argv: str) -> tuple[str, ...]:
    return parse_job("train", [*TRAIN, *argv]).notices


def test_the_command_of_the_cloud_tutorial_is_understood():
    parsed = parse_job("train", GKE)
    assert parsed.spec.num_workers == 4
    assert parsed.spec.distribution_strategy is Strategy.ALLREDUCE
    named = {notice.split("=")[0].lstrip("-") for notice in parsed.notices}
    assert named == {
        "distribution_strategy",
        "num_ps_pods",
        "ps_pod_priority",
        "ps_resource_limit",
        "ps_resource_request",
    }


def test_the_master_of_the_developer_guide_is_understood():
    parsed = parse_job(
        "master",
        [
            "--model_file=zoo/mnist.py",
            "--job_name=test",
            "--training_data_dir=/train",
            "--evaluation_data_dir=/test",
            "--records_per_task=105",
            "--num_epochs=2",
            "--codec_type=tf_example",
            "--grads_to_wait=2",
            "--minibatch_size=10",
            "--log_level=INFO",
        ],
    )
    spec = parsed.spec
    assert (spec.model_zoo, spec.model_def) == ("zoo", "mnist.custom_model")
    assert (spec.training_data, spec.validation_data) == ("/train", "/test")
    assert spec.num_minibatches_per_task == 11
    assert len(parsed.notices) == 6
    assert {"model_zoo", "model_def", "training_data"} <= parsed.given


def test_a_flag_of_today_wins_over_its_old_name():
    parsed = parse_job("train", [*TRAIN, "--training_data_dir=/old"])
    assert parsed.spec.training_data == "/data"
    assert parsed.notices == ("--training_data_dir is retired; --training_data is given and counts.",)


def test_a_bad_value_of_an_old_name_is_reported_under_the_name_of_today():
    with pytest.raises(UsageError, match="--num_minibatches_per_task=many: must be a whole number"):
        parse_job("train", [*TRAIN, "--records_per_task=many"])


@pytest.mark.parametrize("value", ["", "ParameterServerStrategy"])
def test_other_strategies_go_on_with_allreduce(value):
    parsed = parse_job("train", [*TRAIN, f"--distribution_strategy={value}"])
    assert parsed.spec.distribution_strategy is Strategy.ALLREDUCE
    (notice,) = parsed.notices
    assert "going on with AllreduceStrategy" in notice


@pytest.mark.parametrize(
    "argument",
    [
        "--grads_to_wait=1",
        "--num_ps_pods=0",
        "--use_async=false",
        "--need_elasticdl_job_service=true",
        "--need_elasticdl_job_service",
        "--need_task_manager=true",
        "--need_tf_config=False",
    ],
)
def test_an_old_flag_that_asks_for_what_happens_anyway_gets_no_notice(argument):
    assert notices_of(argument) == ()


@pytest.mark.parametrize("argument", ["--grads_to_wait=2", "--num_ps_pods=1", "--use_async", "--use_async=t"])
def test_a_parameter_server_flag_gets_one_notice(argument):
    (notice,) = notices_of(argument)
    assert "has no effect" in notice


@pytest.mark.parametrize("legacy", LEGACY.values(), ids=lambda legacy: legacy.name)
def test_every_old_flag_is_accepted_answered_in_one_line_and_not_passed_on(legacy):
    value = "true" if "false" in legacy.quiet else "7"
    if legacy.name == "model_file":
        value = "zoo/model.py"
    parsed = parse_job("master", ["--job_name=x", "--num_workers=0", f"--{legacy.name}={value}"])
    (notice,) = parsed.notices
    assert f"--{legacy.name}" in notice
    assert "\n" not in notice
    assert not any(legacy.name in word for word in to_argv(parsed.spec, "master"))


def test_old_flags_are_not_in_help():
    for legacy in LEGACY.values():
        assert f"  --{legacy.name} " not in help_text("train")
