"""The TrainingJob of Kubernetes: the same job as flags describe, kept by the API server."""

from edl_allreduce.spec.resource.crd import crd
from edl_allreduce.spec.resource.names import API_VERSION, CRD_NAME, GROUP, KIND, PLURAL, path
from edl_allreduce.spec.resource.objects import TrainingJob, from_object, to_object

__all__ = [
    "API_VERSION",
    "CRD_NAME",
    "GROUP",
    "KIND",
    "PLURAL",
    "TrainingJob",
    "crd",
    "from_object",
    "path",
    "to_object",
]
