"""Files as PaddlePaddle EDL's documents show them: trainer.min-instance and its neighbours."""

from __future__ import annotations

import copy
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from edl_allreduce.errors import UsageError
from edl_allreduce.spec import parse_job
from edl_allreduce.spec.resource import from_object, to_object
from edl_allreduce.spec.resource.documents import MOVED, WITHOUT_EFFECT

EXAMPLES = Path(__file__).resolve().parents[2] / "manifests" / "examples"
FILE = EXAMPLES / "examplejob.yaml"


@pytest.fixture
def example() -> dict:
    return yaml.safe_load(FILE.read_text())


def test_the_documents_example_is_a_job(example):
    assert example["metadata"]["namespace"] == "paddlecloud"
    job = from_object(example)
    assert (job.min, job.max) == (2, 10)
    assert job.spec.num_epochs == example["spec"]["passes"]
    assert job.spec.typed.worker_resources.request == {"cpu": "200m", "memory": "1Gi"}
    assert job.spec.typed.master_resources.request == {"cpu": "500m", "memory": "600Mi"}
    assert "train_ft.py" in job.spec.job_command


def test_parameter_servers_are_a_warning_with_the_reason(example):
    (servers,) = (text for text in from_object(example).warnings if text.startswith("spec.pserver"))
    assert "no effect: there are no parameter servers" in servers


def test_both_spellings_of_one_thing_are_refused(example):
    example["spec"]["workers"] = {"max": 3}
    with pytest.raises(UsageError, match=r"spec.trainer.max-instance and spec.workers.max say the same"):
        from_object(example)
    example["spec"]["workers"] = {"replicas": 3}  # what `kubectl scale` leaves
    assert from_object(example).replicas == 3


def test_what_the_api_server_filled_in_is_nobodys_word(example):
    example["spec"]["training"] = {"numEpochs": 1, "minibatchSize": 64}
    assert from_object(example).spec.num_epochs == 50
    example["spec"]["training"]["numEpochs"] = 3
    with pytest.raises(UsageError, match=r"spec.passes and spec.training.numEpochs say the same"):
        from_object(example)


def test_a_job_that_names_only_its_minimum_has_that_many(example):
    del example["spec"]["trainer"]["max-instance"]
    job = from_object(example)
    assert (job.min, job.max) == (2, 2)
    example["spec"]["trainer"] |= {"min-instance": 0, "max-instance": 4}
    assert (from_object(example).min, from_object(example).max) == (1, 4)


def test_the_entry_point_runs_in_its_workspace(example, tmp_path):
    """As the worker starts it. The shell becomes the script: a signal to the pod must reach the script."""
    place = tmp_path / "work space"
    place.mkdir()
    (place / "train.py").write_text("import os, helper; print(os.getcwd(), helper.WORD, os.getpid())")
    (place / "helper.py").write_text("WORD = 'found'")
    example["spec"]["trainer"] |= {"entrypoint": "python3 -c 'import train'", "workspace": str(place)}
    words = shlex.split(from_object(example).spec.job_command)
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        said, _ = process.communicate(timeout=60)
    assert said == f"{place} found {process.pid}\n"


def test_gpus_of_old_clusters_are_those_of_new_ones(example):
    example["spec"]["trainer"]["resources"] = {
        "limits": {"cpu": 1, "alpha.kubernetes.io/nvidia-gpu": 1},
        "requests": {"cpu": 1},
    }
    assert from_object(example).spec.typed.worker_resources.limit == {"cpu": "1", "nvidia.com/gpu": "1"}


def test_a_job_that_would_not_survive_is_told_that_it_will(example):
    example["spec"]["fault_tolerant"] = False
    (told,) = (text for text in from_object(example).warnings if "fault_tolerant" in text)
    assert "every job survives" in told


def test_reading_changes_nothing_in_the_object(example):
    example["spec"]["trainer"]["resources"]["limits"]["alpha.kubernetes.io/nvidia-gpu"] = 1
    before = copy.deepcopy(example)
    from_object(example)
    assert example == before


def test_every_field_of_the_documents_is_known():
    """The table of the facts: what moved, what is told, and the four that are read on their own."""
    known = {".".join(path) for path in (*MOVED, *WITHOUT_EFFECT)}
    known |= {
        "image",
        "volumes",
        "fault_tolerant",
        "trainer.entrypoint",
        "trainer.workspace",
        "master.resources",
    }
    assert known >= {
        "image", "port", "ports_num", "ports_num_for_sparse", "fault_tolerant", "passes", "volumes",
        "VolumeMounts", "imagePullSecrets", "hostNetwork", "host_network", "NodeSelector",
        "trainer.entrypoint", "trainer.workspace", "trainer.min-instance", "trainer.max-instance",
        "trainer.resources", "trainer.etcd-endpoint", "pserver", "master.etcd-endpoint", "master.resources",
    }  # fmt: skip


def test_our_example_says_the_same_as_the_command_above_it():
    text = (EXAMPLES / "trainingjob.yaml").read_text()
    words = " ".join(line.lstrip("# ").removesuffix("\\") for line in text.split("# Before")[0].splitlines())
    typed = [word for word in words.split() if word.startswith("--")]
    read = from_object({**yaml.safe_load(text)})
    assert to_object(read.spec) == to_object(parse_job("train", typed).spec)
    assert read.warnings == ()
