"""What a cluster must have for them is asked for before a job begins."""

from __future__ import annotations

import pytest

from edl_allreduce.cluster.kubernetes import preflight
from edl_allreduce.errors import ApiRefused, ClusterError
from edl_allreduce.spec import parse_job


class WithoutLow:
    """A cluster that has whatever is asked for, but no pods and no class `low`."""

    def get(self, path: str, **query: str | int) -> dict[str, object]:
        if path.endswith(("/priorityclasses/low", "/pods/elasticdl-job-master")):
            raise ApiRefused("it is not there", status=404)
        return {}

    def create(self, path: str, manifest: dict[str, object], **query: str | int) -> dict[str, object]:
        return {"status": {"allowed": True}}

    def may(self, namespace: str, verb: str, resource: str) -> bool:
        return True


def job(*more: str):
    argv = ["--job_name=job", "--image_name=i:1", "--model_def=a.b.c", "--training_data=/x", *more]
    return parse_job("train", ["--num_workers=2", "--worker_pod_priority=1.0", *argv]).spec


def test_a_missing_class_that_only_they_have_is_told():
    """All workers are `high`; who stands by is one more, and `low`."""
    preflight.check(WithoutLow(), job())
    with pytest.raises(ClusterError, match="there is no PriorityClass low"):
        preflight.check(WithoutLow(), job("--standby=1"))
