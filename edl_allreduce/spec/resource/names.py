"""What the resource is called, and the label that goes with it."""

from __future__ import annotations

from typing import Any, Final

Object = dict[str, Any]

GROUP: Final = "elasticdl.org"
VERSION: Final = "v1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "TrainingJob"
PLURAL: Final = "trainingjobs"
CRD_NAME: Final = f"{PLURAL}.{GROUP}"

QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
"""Kueue's: which queue admits the pods."""


def path(namespace: str = "", name: str = "", subresource: str = "") -> str:
    """Where the API server keeps TrainingJobs; without a namespace those of all."""
    where = f"/namespaces/{namespace}" if namespace else ""
    parts = [f"/apis/{API_VERSION}{where}/{PLURAL}", name, subresource]
    return "/".join(part for part in parts if part)
