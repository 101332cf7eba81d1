"""A job survives the way through argv, which is how the master and the workers receive it."""

import dataclasses
import enum
import typing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_allreduce.spec import Command, ElasticBatch, GradientCompression, JobSpec, parse_job, to_argv
from edl_allreduce.spec.declare import flag_of

# Any text that a process can receive: no NUL.
words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
counts = st.integers(0, 10**6)

# Flags whose text has a syntax of its own, or that exclude each other.
texts = {
    "job_name": st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True),
    "model_def": st.just("mnist.cnn.custom_model"),
    "training_data": words.filter(bool),
    "prediction_data": st.just(""),
    "job_command": st.just(""),
    "image_name": words.filter(bool),
    "namespace": st.sampled_from(["default", "team-a"]),
    "model_params": st.sampled_from(["", "a=1; b=x=y"]),
    "data_reader_params": st.sampled_from(["", "a=1; b=x=y"]),
    "aux_params": st.sampled_from(["", "disable_relaunch=true"]),
    "master_resource_request": st.sampled_from(["", "cpu=100m", "cpu=2,memory=1Gi"]),
    "worker_resource_request": st.sampled_from(["", "cpu=2,memory=1Gi,gpu=1"]),
    "master_resource_limit": st.just(""),
    "worker_resource_limit": st.sampled_from(["", "cpu=4,memory=2Gi,gpu=1"]),
    "master_pod_priority": st.sampled_from(["", "high"]),
    "worker_pod_priority": st.sampled_from(["", "low", "0.5", "high=0.5"]),
    "worker_tolerations": st.sampled_from(["", "spot=true:NoSchedule"]),
    "worker_node_selector": st.sampled_from(["", "a/b=c"]),
    "volume": st.sampled_from(["", "claim_name=a,mount_path=/a;host_path=/b,mount_path=/b"]),
    "envs": st.sampled_from(["", "A=1,2,B="]),
    "populate_env_names": st.sampled_from(["", "TF_.*"]),
    "cluster_spec": st.just(""),
    "cluster_spec_json": st.sampled_from(["", '{"pod_spec": {"labels": {"a": "b"}}}']),
    "deadline": st.sampled_from(["", "2030-12-31T08:00:00Z"]),
    "queue_name": st.sampled_from(["", "team-a"]),
    "dashboard_port": st.sampled_from(["auto", "off", "8080"]),
    "master_addr": st.sampled_from(["", "localhost:50001", "[::1]:1"]),
    "verify_fingerprint": st.sampled_from(["", "0123456789abcdef" * 4]),
}
numbers = {
    "num_workers": st.integers(4, 100),
    "min_workers": st.integers(1, 4),
    "max_workers": st.integers(100, 200),
    "port": st.integers(0, 65535),
}


def values_of(field: dataclasses.Field[object]) -> st.SearchStrategy[object]:
    kind = typing.get_type_hints(JobSpec)[field.name]
    if field.name in texts:
        return texts[field.name]
    if field.name in numbers:
        return numbers[field.name]
    if kind is str:
        return words
    if kind is bool:
        return st.booleans()
    if kind is float:
        minimum = flag_of(field).minimum
        return st.floats(minimum, allow_nan=False, allow_infinity=False)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return st.sampled_from(list(kind))
    return counts.map(lambda n: n + 1)


specs = st.fixed_dictionaries(
    {f.name: st.one_of(st.just(f.default), values_of(f)) for f in dataclasses.fields(JobSpec)}
    | {name: texts[name] for name in ("job_name", "model_def", "training_data", "image_name")}
    | {name: numbers[name] for name in ("num_workers", "min_workers")}
).map(lambda values: consistent(JobSpec(**values)))


def consistent(spec: JobSpec) -> JobSpec:
    """Make the few fields fit that are checked against each other."""
    if spec.distribution_strategy == "Local":
        spec = dataclasses.replace(spec, num_workers=1, min_workers=1)
    if "gpu" not in spec.worker_resource_request:
        spec = dataclasses.replace(spec, worker_resource_limit="")
    if not spec.validation_data:
        spec = dataclasses.replace(spec, evaluation_steps=0)
    if not spec.reproducible:
        return dataclasses.replace(spec, verify_fingerprint="")
    none = GradientCompression.NONE
    return dataclasses.replace(
        spec, elastic_batch=ElasticBatch.GLOBAL, gradient_compression=none, virtual_workers=200
    )


def readable_by(command: Command, spec: JobSpec) -> JobSpec:
    """The part of a job that the command has flags for."""
    foreign = {f.name: f.default for f in dataclasses.fields(JobSpec) if command not in flag_of(f).commands}
    return dataclasses.replace(spec, **foreign)


@pytest.mark.search
@pytest.mark.parametrize("command", [Command.TRAIN, Command.MASTER, Command.WORKER])
@settings(deadline=None)
@given(spec=specs)
def test_a_job_comes_back_from_its_own_argv_without_a_notice(command, spec):
    parsed = parse_job(command, to_argv(spec, command))
    assert parsed.spec == readable_by(command, spec)
    assert parsed.notices == ()


def test_only_what_differs_from_the_default_is_written():
    argv = ["--job_name=digits", "--model_def=a.b", "--training_data=/d"]
    assert sorted(to_argv(parse_job("train", [*argv, "--num_workers=2"]).spec)) == sorted(argv)


def test_the_readers_own_defaults_count():
    spec = JobSpec(job_name="x", port=0, num_workers=0)
    assert "--port=0" in to_argv(spec, "master")
    assert "--port=0" not in to_argv(spec, "worker")
