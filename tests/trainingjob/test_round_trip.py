"""A job survives the way through a TrainingJob: flags → object → flags."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_allreduce.errors import UsageError
from edl_allreduce.spec import Command, JobSpec, parse_job, to_argv
from edl_allreduce.spec.declare import flag_of
from edl_allreduce.spec.resource import from_object, to_object
from edl_allreduce.spec.resource.places import LEFT_OUT
from edl_allreduce.spec.resource.schema import spec_schema, unknown
from edl_allreduce.spec.typed import TYPED
from tests.flags.test_round_trip import specs
from tests.tutorial import GKE

KEPT = {"job_name", "namespace", "queue_name"}
"""Flags that stand in metadata."""


def in_a_cluster(spec: JobSpec) -> JobSpec:
    """Without what only the submitting command or one process reads."""
    fields = dataclasses.fields(JobSpec)
    gone = {f.name: f.default for f in fields if f.name in LEFT_OUT.keys() - KEPT}
    return dataclasses.replace(spec, **gone)


def same(one: JobSpec, other: JobSpec) -> None:
    for field in dataclasses.fields(JobSpec):
        if field.name in TYPED:
            assert getattr(one.typed, TYPED[field.name]) == getattr(other.typed, TYPED[field.name]), (
                field.name
            )
        else:
            assert getattr(one, field.name) == getattr(other, field.name), field.name
    assert one.typed.worker_resources == other.typed.worker_resources
    assert one.typed.master_resources == other.typed.master_resources


@pytest.mark.search
@settings(deadline=None)
@given(spec=specs)
def test_a_job_comes_back_from_its_resource(spec):
    spec = in_a_cluster(spec)
    sent = to_object(spec)
    read = from_object(json.loads(json.dumps(sent)))
    same(spec, read.spec)
    assert to_object(read.spec) == sent
    assert read.warnings == () == tuple(unknown(sent["spec"], spec_schema()))
    assert (read.min, read.max) == (spec.min_workers, spec.max_workers or spec.num_workers)


@pytest.mark.search
@settings(deadline=None)
@given(spec=specs)
def test_the_master_gets_the_flags_that_the_user_typed(spec):
    spec = in_a_cluster(spec)
    foreign = {f.name: f.default for f in dataclasses.fields(JobSpec)
               if Command.MASTER not in flag_of(f).commands}  # fmt: skip
    argv = to_argv(dataclasses.replace(from_object(to_object(spec)).spec, **foreign), "master")
    same(dataclasses.replace(spec, **foreign), parse_job("master", argv).spec)


def test_the_tutorials_command_gives_a_resource_that_people_can_read():
    sent = to_object(parse_job("train", GKE).spec)
    assert sent == {
        "apiVersion": "elasticdl.org/v1",
        "kind": "TrainingJob",
        "metadata": {"name": "test-mnist", "namespace": "default"},
        "spec": {
            "image": "gcr.io/project/elasticdl:mnist",
            "model": {
                "modelZoo": "model_zoo",
                "modelDef": "mnist_functional_api.mnist_functional_api.custom_model",
            },
            "data": {
                "trainingData": "/data/mnist/train",
                "validationData": "/data/mnist/test",
                "numMinibatchesPerTask": 64,
            },
            "training": {"numEpochs": 5, "evaluationSteps": 200},
            "workers": {
                "min": 1,
                "max": 4,
                "priority": "low",
                "resources": {
                    "requests": {"cpu": "2", "memory": "2048Mi"},
                    "limits": {"cpu": "2", "memory": "2048Mi"},
                },
            },
            "master": {
                "priority": "high",
                "resources": {
                    "requests": {"cpu": "2", "memory": "2048Mi"},
                    "limits": {"cpu": "2", "memory": "2048Mi"},
                },
            },
            "volumes": [{"name": "volume-0", "persistentVolumeClaim": {"claimName": "fileserver-claim"}}],
            "volumeMounts": [{"name": "volume-0", "mountPath": "/data"}],
        },
    }


def test_the_batch_is_counted_for_the_wanted_workers_when_there_may_be_more():
    flags = ["--job_name=job", "--image_name=i", "--model_def=a.b.c", "--training_data=/x", "--num_workers=4"]
    sent = to_object(parse_job("train", [*flags, "--max_workers=16"]).spec)
    assert sent["spec"]["workers"] == {"min": 1, "max": 16}
    assert sent["spec"]["training"] == {"batchWorkers": 4}
    read = from_object(sent)
    assert (read.min, read.max, read.spec.global_batch_size) == (1, 16, 256)


def test_older_names_of_pieces_are_merged_as_they_are_applied():
    both = {"master_pod_spec": {"labels": {"a": "1"}, "env": [{"name": "A", "value": "1"}]},
            "master_spec": {"labels": {"a": "2", "b": "2"}, "env": [{"name": "A"}, {"name": "B"}]},
            "ps_spec": {"labels": {"c": "3"}}}  # fmt: skip
    flags = [*GKE, f"--cluster_spec_json={json.dumps(both)}"]
    sent = to_object(parse_job("train", flags).spec)
    assert sent["spec"]["templates"] == {
        "master": {"labels": {"a": "1", "b": "2"}, "env": [{"name": "A", "value": "1"}, {"name": "B"}]}
    }


def test_code_of_the_user_is_not_sent_to_a_controller():
    spec = parse_job("train", [*GKE, "--cluster_spec=mine.py"]).spec
    with pytest.raises(UsageError, match="--no_controller"):
        to_object(spec)


@pytest.mark.search
@settings(deadline=None)
@given(
    value=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8),
    name=st.sampled_from(["A", "B_C"]),
)
def test_a_variable_arrives_as_it_was_written_or_is_refused(value, name):
    """The flag's syntax has no way to quote a comma; what it cannot carry must not be changed on the way."""
    given = to_object(parse_job("train", GKE).spec)
    given["spec"]["env"] = [{"name": name, "value": value}, {"name": "LAST", "value": "1"}]
    try:
        read = from_object(given).spec
    except UsageError as error:
        assert "spec.env" in str(error) or "NAME=VALUE" in str(error) or "given twice" in str(error)
        return
    assert read.typed.envs == {name: value, "LAST": "1"}
