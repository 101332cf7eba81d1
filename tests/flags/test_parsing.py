"""What a user types becomes a job, or a message that helps."""

import dataclasses

import pytest

from edl_allreduce.errors import UsageError
from edl_allreduce.spec import Command, JobSpec, JobType, LogLevel, Strategy, parse_job
from edl_allreduce.spec.declare import flag_of
from edl_allreduce.spec.flags import help_text

TRAIN = ["--job_name=digits", "--model_def=mnist.cnn.custom_model", "--training_data=/data"]
EVALUATE = [
    "--job_name=digits",
    "--model_def=mnist.cnn.custom_model",
    "--validation_data=/data",
    "--checkpoint_dir_for_init=/ckpt",
]


def spec_of(*argv: str) -> JobSpec:
    return parse_job("train", [*TRAIN, *argv]).spec


def notices_of(*argv: str) -> tuple[str, ...]:
    return parse_job("train", [*TRAIN, *argv]).notices


def problem(command: str, *argv: str) -> str:
    with pytest.raises(UsageError) as caught:
        parse_job(command, argv)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_a_minimal_command_gives_elasticdls_defaults_and_no_notice():
    parsed = parse_job("train", TRAIN)
    assert parsed.notices == ()
    assert parsed.given == {"job_name", "model_def", "training_data"}
    spec = parsed.spec
    assert (spec.num_workers, spec.minibatch_size, spec.num_epochs, spec.num_minibatches_per_task) == (
        2,
        64,
        1,
        8,
    )
    assert (spec.worker_resource_request, spec.master_resource_request) == (
        "cpu=1,memory=4096Mi",
        "cpu=0.1,memory=1024Mi",
    )
    assert (spec.checkpoint_steps, spec.keep_checkpoint_max, spec.evaluation_steps) == (0, 0, 0)
    assert (spec.feed, spec.loss, spec.eval_metrics_fn) == ("feed", "loss", "eval_metrics_fn")
    assert (spec.image_pull_policy, spec.restart_policy, spec.namespace) == ("Always", "Never", "default")
    assert spec.distribution_strategy is Strategy.ALLREDUCE


def test_a_value_may_follow_after_a_space_or_an_equals_sign():
    assert spec_of("--num_workers", "7") == spec_of("--num_workers=7")


def test_the_last_of_a_repeated_flag_counts():
    assert spec_of("--num_workers=3", "--num_workers=5").num_workers == 5


@pytest.mark.parametrize("word", ["true", "yes", "t", "y", "TRUE", "Yes"])
def test_these_words_are_true(word):
    parsed = parse_job("train", [*TRAIN, f"--force_use_kube_config_file={word}", "--image_name=i"])
    assert parsed.spec.force_use_kube_config_file
    assert parsed.notices == ()


@pytest.mark.parametrize("word", ["false", "no", "F"])
def test_these_words_are_false(word):
    assert spec_of(f"--shuffle={word}").shuffle is False
    assert notices_of(f"--shuffle={word}") == ()


def test_any_other_word_is_false_and_that_is_said():
    assert spec_of("--shuffle=1").shuffle is False
    (notice,) = notices_of("--shuffle=1")
    assert "--shuffle=1 counts as false" in notice


def test_a_bare_boolean_turns_its_default_around():
    assert spec_of("--shuffle").shuffle is False
    assert spec_of("--force_use_kube_config_file").force_use_kube_config_file is True


def test_choices_are_read_in_any_case():
    assert spec_of("--log_level=debug").log_level is LogLevel.DEBUG
    assert spec_of("--distribution_strategy=AllReduceStrategy").distribution_strategy is Strategy.ALLREDUCE


def test_an_unknown_flag_names_the_nearest_known_one():
    message = problem("train", *TRAIN, "--num_worker=3")
    assert "Unknown flag --num_worker." in message
    assert "Did you mean --num_workers?" in message


def test_dashes_in_a_flags_name_lead_to_the_underscores():
    assert "Did you mean --num_workers?" in problem("train", *TRAIN, "--num-workers=3")


def test_no_abbreviation_is_guessed():
    assert "Did you mean --minibatch_size?" in problem("train", *TRAIN, "--minibatch_siz=3")


def test_a_misspelt_flag_is_not_also_reported_as_missing():
    message = problem("train", *TRAIN[:2], "--trainig_data", "/data")
    assert "Did you mean --training_data?" in message
    assert "missing" not in message
    assert "Unexpected" not in message


def test_a_stray_word_is_an_error():
    assert "Unexpected word 'model.py'" in problem("train", *TRAIN, "model.py")


def test_a_flag_without_its_value_is_an_error():
    assert "--num_workers" in problem("train", *TRAIN, "--num_workers")


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("--num_workers=many", "must be a whole number"),
        ("--failure_detection_seconds=soon", "must be a number"),
        ("--failure_detection_seconds=nan", "must be a finite number"),
        ("--failure_detection_seconds=0", "must be at least 0.5"),
        ("--minibatch_size=0", "must be at least 1"),
        ("--log_level=LOUD", "must be one of DEBUG, INFO, WARNING, ERROR, CRITICAL"),
        ("--elastic_batch=glob", "did you mean global?"),
        ("--image_pull_policy=Sometimes", "Always, IfNotPresent, Never"),
        ("--port=70000", "at most 65535"),
        ("--worker_resource_request=cpu=x", "cores"),
        ("--volume=mount_path=/data", "claim_name and host_path"),
        ("--envs=A", "NAME=VALUE"),
        ("--populate_env_names=(", "regular expression"),
        ("--cluster_spec_json={", "not JSON"),
        ("--cluster_spec_json=[]", "JSON object"),
        ("--worker_pod_priority=1.5", "between 0 and 1"),
        ("--model_def=custom_model", "dotted path"),
        ("--worker_resource_limit=cpu=0.5", "less than the request"),
        ("--namespace=My_Space", "lower-case"),
    ],
)
def test_a_bad_value_says_what_is_allowed(argument, expected):
    message = problem("train", *TRAIN, argument)
    assert expected in message
    assert argument.split("=")[0] in message


def test_all_problems_are_listed_at_once():
    message = problem("train", "--num_workers=x", "--minibatch_size=0", "--wat")
    for part in (
        "--num_workers=x",
        "--minibatch_size=0",
        "--wat",
        "--job_name",
        "--model_def",
        "--training_data",
    ):
        assert part in message
    assert message.startswith("6 problems:")


def test_a_check_across_flags_waits_until_each_can_be_read():
    assert "--min_workers" not in problem("train", *TRAIN, "--num_workers=x", "--min_workers=5")


def test_the_minimum_must_not_exceed_the_number_of_workers():
    assert "--min_workers=3 is more than --num_workers=2" in problem("train", *TRAIN, "--min_workers=3")


def test_only_a_master_by_hand_may_start_no_workers():
    assert "started by hand" in problem("train", *TRAIN, "--num_workers=0")
    assert parse_job("master", ["--job_name=x", "--num_workers=0"]).spec.num_workers == 0


@pytest.mark.parametrize("name", ["Test", "a_b", "-a", "a-", "a.b", "a" * 41])
def test_a_job_name_must_fit_into_the_names_of_pods(name):
    assert f"--job_name={name}" in problem("train", f"--job_name={name}", *TRAIN[1:])


def test_a_bad_job_name_comes_with_a_good_one():
    assert "for example my-job" in problem("train", "--job_name=My_Job", *TRAIN[1:])


def test_a_script_and_a_model_exclude_each_other():
    assert "exclude each other" in problem("train", *TRAIN, "--job_command=python x.py")


def test_a_script_needs_neither_model_nor_data():
    assert parse_job("train", ["--job_name=x", "--job_command=python x.py"]).spec.job_command == "python x.py"


def test_manifests_are_written_only_for_a_cluster_job():
    assert "--image_name" in problem("train", *TRAIN, "--yaml=job.yaml")


def test_flags_of_a_cluster_are_named_when_the_job_runs_locally():
    (notice,) = notices_of("--volume=host_path=/a,mount_path=/b", "--namespace=team")
    assert "--volume" in notice and "--namespace" in notice


def test_a_local_job_is_one_process():
    parsed = parse_job("train", [*TRAIN, "--distribution_strategy=Local", "--num_workers=4"])
    assert (parsed.spec.num_workers, parsed.spec.global_batch_size) == (1, 64)
    assert any("one process" in notice for notice in parsed.notices)


def test_evaluate_and_predict_need_data_and_a_checkpoint():
    for command, data in (("evaluate", "--validation_data"), ("predict", "--prediction_data")):
        message = problem(command, *TRAIN[:2])
        assert f"{data} is missing" in message
        assert "--checkpoint_dir_for_init is missing" in message


def test_a_flag_of_another_command_is_noticed_and_not_used():
    parsed = parse_job("evaluate", [*EVALUATE, "--num_epochs=3"])
    assert parsed.spec.num_epochs == 1
    assert parsed.notices == ("--num_epochs is a flag of train; evaluate does not use it.",)


def test_the_master_by_hand_listens_where_the_documents_say():
    assert parse_job("master", ["--job_name=x", "--num_workers=0"]).spec.port == 50001
    assert parse_job("train", TRAIN).spec.port == 0


def test_a_worker_by_hand_needs_only_its_number_and_master():
    spec = parse_job("worker", ["--worker_id=3", "--master_addr=localhost:50001"]).spec
    assert (spec.worker_id, spec.master_addr) == (3, "localhost:50001")
    assert parse_job("worker", []).spec.worker_id is None


def test_unknown_auxiliary_parameters_are_noticed():
    assert notices_of("--aux_params=disable_relaunch=true") == ()
    (notice,) = notices_of("--aux_params=disable_relunch=true")
    assert "disable_relunch has no effect" in notice


@pytest.mark.parametrize(
    ("argv", "job_type"),
    [
        (["--training_data=a"], JobType.TRAINING_ONLY),
        (["--training_data=a", "--validation_data=b"], JobType.TRAINING_ONLY),
        (
            ["--training_data=a", "--validation_data=b", "--evaluation_steps=5"],
            JobType.TRAINING_WITH_EVALUATION,
        ),
        (["--validation_data=b"], JobType.EVALUATION_ONLY),
        (["--prediction_data=c"], JobType.PREDICTION_ONLY),
    ],
)
def test_what_a_job_does_follows_from_its_data(argv, job_type):
    argv = ["--job_name=x", "--model_def=a.b", "--checkpoint_dir_for_init=d", *argv]
    assert parse_job("master", argv).spec.job_type is job_type


@pytest.mark.parametrize("name", ["job_dir", "log_file_path", "report"])
def test_object_storage_is_refused_where_a_file_is_needed(name):
    told = problem("train", *TRAIN, f"--{name}=s3://box/place")
    assert f"--{name}=s3://box/place: cannot be in object storage; give a path." in told
    assert getattr(spec_of(f"--{name}=place"), name) == "place"


def test_prediction_together_with_training_is_refused():
    message = problem("master", *TRAIN, "--prediction_data=p", "--checkpoint_dir_for_init=c")
    assert "exclude each other" in message


@pytest.mark.parametrize("command", list(Command))
def test_help_shows_every_flag_of_the_command_and_no_other(command):
    text = help_text(command)
    for field in dataclasses.fields(JobSpec):
        assert (f"  --{field.name} " in text) is (command in flag_of(field).commands)


def test_every_flag_has_help_that_ends_like_a_sentence():
    for field in dataclasses.fields(JobSpec):
        assert flag_of(field).help.endswith("."), field.name


def test_help_is_printed_on_request(capsys):
    with pytest.raises(SystemExit) as caught:
        parse_job("train", ["--help"])
    assert caught.value.code == 0
    assert "elasticdl train --job_name=digits" in capsys.readouterr().out
