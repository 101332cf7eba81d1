"""What stands in a TrainingJob is data from outside: each mistake is named, in the resource's own words."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_allreduce.errors import UsageError
from edl_allreduce.spec import CleanPodPolicy
from edl_allreduce.spec.resource import from_object

GOOD = {
    "apiVersion": "elasticdl.org/v1",
    "kind": "TrainingJob",
    "metadata": {
        "name": "digits",
        "namespace": "team",
        "uid": "u-1",
        "generation": 3,
        "creationTimestamp": "2030-01-01T00:00:00Z",
        "labels": {"kueue.x-k8s.io/queue-name": "shared"},
    },
    "spec": {
        "image": "example/digits:1",
        "model": {"modelDef": "digits.mlp.custom_model"},
        "data": {"trainingData": "/data/train"},
        "workers": {"min": 2, "max": 8, "replicas": 4},
        "weight": 2,
        "ttlSecondsAfterFinished": 0,
        "cleanPodPolicy": "All",
        "suspend": True,
        "managedBy": "kueue.x-k8s.io/multikueue",
        "deadline": "2030-01-02T00:00:00Z",
    },
}


def changed(path: str, value: object) -> dict:
    made = copy.deepcopy(GOOD)
    *above, last = path.split(".")
    at = made
    for key in above:
        at = at.setdefault(key, {})
    if value is None:
        del at[last]
    else:
        at[last] = value
    return made


@pytest.mark.parametrize(
    ("training", "most"),
    [
        ({"batchWorkers": 2}, 4),
        ({"batchWorkers": 2, "virtualWorkers": 3}, 3),
        ({"batchWorkers": 2, "virtualWorkers": 24}, 8),
    ],
)
def test_a_reproducible_job_whose_maximum_was_raised_goes_on_with_as_many_as_have_something_to_do(
    training, most
):
    """What would let more of them work cannot be changed any more."""
    job = from_object(changed("spec.training", {"reproducible": True, **training}))
    assert job.max == most
    told = [text for text in job.warnings if "spec.workers.max is 8" in text]
    assert len(told) == (most < 8)
    assert all(f"it gets at most {most} workers" in text for text in told)


def test_a_good_one_is_read_whole():
    job = from_object(GOOD)
    assert (job.namespace, job.name, job.uid, job.generation) == ("team", "digits", "u-1", 3)
    assert (job.min, job.max, job.replicas) == (2, 8, 4)
    assert (job.suspend, job.managed_by, job.queue) == (True, "kueue.x-k8s.io/multikueue", "shared")
    assert (job.spec.weight, job.spec.ttl_seconds_after_finished) == (2.0, 0)
    assert job.spec.clean_pod_policy is CleanPodPolicy.ALL
    assert job.created == 1893456000.0 and job.deletion is None
    assert job.spec.typed.deadline == job.created + 86400
    assert job.warnings == ()


def test_one_that_is_asked_to_go_says_when():
    job = from_object(changed("metadata.deletionTimestamp", "2030-01-01T00:01:00Z"))
    assert job.deletion == job.created + 60


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("spec.image", None, "spec.image is missing"),
        ("spec.workers.max", None, "spec.workers.max is missing"),
        ("spec.workers", None, "spec.workers.max is missing"),
        ("spec.workers.min", 9, "workers.min=9 is more than workers.max=8"),
        ("spec.workers.min", "2", "spec.workers.min: expected a whole number, got '2'"),
        ("spec.workers.min", 0, "spec.workers.min: must be at least 1, is 0"),
        ("spec.workers.max", True, "spec.workers.max: expected a whole number, got True"),
        ("spec.workers", [], "spec.workers: expected an object"),
        ("spec.model.modelDef", "digits", "model.modelDef: 'digits': expected the dotted path"),
        ("spec.model", None, "model.modelDef is missing"),
        ("spec.data", None, "data.trainingData is missing"),
        ("spec.jobCommand", "python x.py", "jobCommand and model.modelDef exclude each other"),
        ("spec.cleanPodPolicy", "Some", "expected one of Running, All, None, got 'Some'"),
        ("spec.weight", float("nan"), "spec.weight: expected a number, got nan"),
        ("spec.weight", 10**400, "spec.weight: expected a number, got 1000"),
        ("spec.workers.max", 2.5, "spec.workers.max: expected a whole number, got 2.5"),
        ("spec.weight", 0, "spec.weight: must be at least 0.01, is 0"),
        ("spec.deadline", "soon", "deadline: 'soon': expected a date"),
        ("spec.workers.resources", {"requests": {"memory": "lots"}}, "memory=lots: expected an amount"),
        ("spec.workers.nodeSelector", {"a": "b,c=d"}, "spec.workers.nodeSelector: expected labels"),
        ("spec.workers.tolerations", [{"operator": "Exists"}], "expected key, operator"),
        ("spec.workers.tolerations", [{"key": "a", "operator": "In"}], "operator (Equal or Exists)"),
        ("spec.workers.tolerations", [{"key": "a", "tolerationSeconds": "3"}], "templates.workers"),
        ("spec.volumes", [{"name": "a"}], "either a persistentVolumeClaim or a hostPath"),
        ("spec.volumes", [{"name": "a", "hostPath": {"path": "/a"}}], "a is mounted nowhere"),
        ("spec.volumeMounts", [{"name": "b", "mountPath": "/b"}], "there is no volume 'b'"),
        ("spec.templates", {"pods": {"labels": {"a": 1}}}, "expected text for each name"),
        ("metadata.name", "Digits", "metadata.name=Digits"),
        ("metadata.name", "d" * 41, "has 41 characters, at most 40"),
    ],
)
def test_a_mistake_is_named(path, value, words):
    with pytest.raises(UsageError) as refused:
        from_object(changed(path, value))
    assert words in str(refused.value)
    assert "--" not in str(refused.value), "nobody typed a flag"


def test_several_mistakes_are_told_at_once():
    wrong = changed("spec.weight", "heavy")
    wrong["spec"]["training"] = {"minibatchSize": 0}
    with pytest.raises(UsageError) as refused:
        from_object(wrong)
    assert "spec.weight" in str(refused.value) and "spec.training.minibatchSize" in str(refused.value)


def test_a_field_that_nobody_knows_is_a_warning():
    """An object from a newer version: the API server here would have pruned it."""
    job = from_object(changed("spec.workers.colour", "red"))
    assert job.warnings == ("spec.workers.colour is unknown and has no effect.",)
    older = changed("spec.workers", None)
    older["spec"]["trainer"] = {"max-instance": 2, "colour": "red"}
    assert from_object(older).warnings == ("spec.trainer.colour is unknown and has no effect.",)


def test_what_has_only_limits_asks_for_as_much():
    limits = {"cpu": 2, "memory": "1Gi"}
    job = from_object(changed("spec.workers.resources", {"limits": limits}))
    assert job.spec.typed.worker_resources.request == {"cpu": "2", "memory": "1Gi"}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
PLACES = [
    "metadata", "metadata.labels", "spec", "spec.deadline", "spec.env", "spec.master", "spec.model",
    "spec.passes", "spec.suspend", "spec.templates", "spec.templates.pods", "spec.trainer",
    "spec.trainer.max-instance", "spec.trainer.resources", "spec.training.minibatchSize",
    "spec.volumeMounts", "spec.volumes", "spec.weight", "spec.workers", "spec.workers.resources",
    "spec.workers.resources.limits", "spec.workers.tolerations",
]  # fmt: skip


@settings(deadline=None, max_examples=300)
@given(path=st.sampled_from(PLACES), value=json_values.filter(lambda value: value is not None))
def test_whatever_stands_there_gives_a_job_or_a_usage_error(path, value):
    try:
        from_object(changed(path, value))
    except UsageError as error:
        assert str(error)
