"""The user's own adaptation of manifests: the Python file of --cluster_spec."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from edl_allreduce.cluster.kubernetes.api import client_library
from edl_allreduce.cluster.kubernetes.names import Object
from edl_allreduce.errors import UsageError


def adapted_by_file(file: str, manifest: Object) -> Object:
    """The manifest as `cluster.with_pod` or `cluster.with_service` in the user's --cluster_spec makes it.

    ElasticDL hands the client's own objects to these, so they are made for the occasion.
    """
    kubernetes = client_library()
    kind = str(manifest["kind"])
    cluster = getattr(_user_module(file), "cluster", None)
    change = getattr(cluster, f"with_{kind.lower()}", None)
    if change is None:
        raise UsageError(
            f"--cluster_spec={file}: expected an object `cluster` with the methods with_pod(pod) and "
            "with_service(service)"
        )
    client = kubernetes.client.ApiClient(kubernetes.client.Configuration())
    typed = client._ApiClient__deserialize(manifest, f"V1{kind}")
    result: Object = client.sanitize_for_serialization(change(typed))
    return result


def _user_module(file: str) -> ModuleType:
    if not Path(file).is_file():
        raise UsageError(f"--cluster_spec={file}: there is no such file")
    spec = importlib.util.spec_from_file_location("elasticdl_cluster_spec", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
