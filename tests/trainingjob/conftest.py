"""A control plane that knows TrainingJobs, while the tests of one file run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edl_allreduce.spec.resource import CRD_NAME
from kubelab import eventually
from kubelab.api import condition
from kubelab.errors import ApiError

FILE = Path(__file__).resolve().parents[2] / "manifests" / "crd" / "trainingjob.yaml"
PATH = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{CRD_NAME}"


@pytest.fixture(scope="module")
def training_jobs(_hollow_clusters) -> Iterator[None]:
    """Gone again at the end: where it is installed `elasticdl train` submits TrainingJobs."""
    install(_hollow_clusters.lend())
    yield
    if _hollow_clusters.running is not None:
        remove(_hollow_clusters.running)


def install(cluster) -> None:
    """Until they are served. `kubectl wait` is not asked: it fails on a CRD that has no conditions yet."""
    cluster.kubectl("apply", "--server-side", "--validate=strict", "-f", str(FILE))
    served(cluster)


def remove(cluster) -> None:
    cluster.api.delete(PATH)
    unserved(cluster)


def served(cluster) -> None:
    eventually(lambda: _served(cluster), "TrainingJobs are served", 60)


def unserved(cluster) -> None:
    eventually(lambda: not _served(cluster), "TrainingJobs are gone", 60)


def _served(cluster) -> bool:
    try:
        cluster.api.get("/apis/elasticdl.org/v1/trainingjobs")
        conditions = cluster.api.get(PATH)["status"].get("conditions")
        refused = condition(conditions, "NonStructuralSchema")
        assert refused is None, refused
    except ApiError as error:
        assert error.status in (404, 429, 503), error  # 429: its storage is being made
        return False
    return True
