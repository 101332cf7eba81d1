"""One place decides where a job runs and where a job of a name lives; every command asks it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import edl_allreduce
from edl_allreduce.cluster import choose, registry
from edl_allreduce.cluster.base import Site
from edl_allreduce.cluster.choose import Where, cluster_of, where
from edl_allreduce.cluster.kubernetes import finding
from edl_allreduce.cluster.manual import ManualCluster
from edl_allreduce.spec import Command, JobSpec, Strategy

PACKAGE = Path(edl_allreduce.__file__).parent
LOCAL = Strategy.LOCAL


@pytest.mark.parametrize(
    ("spec", "command", "expected"),
    [
        (JobSpec(), Command.TRAIN, Where.THIS_MACHINE),
        (JobSpec(image_name="i"), Command.TRAIN, Where.KUBERNETES),
        (JobSpec(image_name="i", distribution_strategy=LOCAL), Command.TRAIN, Where.KUBERNETES),
        (JobSpec(worker_image="w"), Command.TRAIN, Where.THIS_MACHINE),
        (JobSpec(worker_image="w"), Command.MASTER, Where.KUBERNETES),
        (JobSpec(distribution_strategy=LOCAL, num_workers=1), Command.EVALUATE, Where.THIS_PROCESS),
        (JobSpec(distribution_strategy=LOCAL, num_workers=1), Command.MASTER, Where.THIS_MACHINE),
        (JobSpec(num_workers=0), Command.MASTER, Where.BY_HAND),
    ],
)
def test_where_a_job_runs_follows_from_its_flags(spec, command, expected):
    assert where(spec, command) is expected


def test_a_master_on_this_machine_gets_the_cluster_that_was_chosen(tmp_path):
    site = Site(lambda worker_id: [], tmp_path)
    assert isinstance(cluster_of(JobSpec(num_workers=0), site), ManualCluster)


def test_a_namespace_means_kubernetes_and_anything_else_this_machine(monkeypatch):
    monkeypatch.setattr(finding, "find_job", lambda namespace, name, **_: ("pods", namespace, name))
    monkeypatch.setattr(registry, "find_job", lambda name, directory: ("files", name, directory))
    assert choose.find_job("digits", "", "team") == ("pods", "team", "digits")
    assert choose.find_job("digits", "d") == ("files", "digits", "d")


DECIDING = {"image_name", "worker_image"}
PRINTERS = {
    "cluster/choose.py",  # the one that decides
    "cluster/kubernetes/manifests.py",  # writes the image into the pods
}


def test_nobody_else_decides_by_the_image():
    found = set()
    for file in PACKAGE.rglob("*.py"):
        name = file.relative_to(PACKAGE).as_posix()
        nodes = ast.walk(ast.parse(file.read_text()))
        if any(isinstance(n, ast.Attribute) and n.attr in DECIDING for n in nodes):
            found.add(name)
    # The checks of the flags say what an image is missing for.
    assert {name for name in found if not name.startswith("spec/")} == PRINTERS
