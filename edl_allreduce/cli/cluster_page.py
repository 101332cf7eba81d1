"""`elasticdl dashboard --cluster`: the page of a cluster, from one of its controllers."""

from __future__ import annotations

from typing import Protocol

from edl_allreduce import clock
from edl_allreduce.cluster.kubernetes import names
from edl_allreduce.cluster.kubernetes.api import Api
from edl_allreduce.cluster.kubernetes.names import Object
from edl_allreduce.cluster.kubernetes.remote import Tunnel
from edl_allreduce.cluster.kubernetes.training_jobs import CONTROLLER_CURE
from edl_allreduce.errors import ClusterError

NAMESPACE = "elasticdl-system"
CONTROLLER = "app=elasticdl-controller"
PORT = "page"
"""The name of the container's port."""
LOOK_SECONDS = 5.0


class Reader(Protocol):
    """The part of the API that is needed here."""

    def get(self, path: str, **query: str | int) -> Object: ...


class ClusterDoor:
    """A port of this machine that leads to the page, for as long as this process and the controller live."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api, self._namespace = api, namespace
        self.pod, port = controller(api, namespace)
        self.address = Tunnel(api, namespace, self.pod, port).address

    def wait(self) -> None:
        """Until the controller is gone, with what to do then."""
        for _ in clock.polls(LOOK_SECONDS):
            if not any(name == self.pod for name, _ in running(self._api, self._namespace)):
                raise ClusterError(
                    f"the controller {self.pod} ended; another one serves the page: once more."
                )


def controller(api: Reader, namespace: str) -> tuple[str, int]:
    """The pod that knows most, which is the oldest, and the port of its page."""
    found = running(api, namespace)
    if not found:
        raise ClusterError(
            f"no controller runs in namespace {namespace}. `{CONTROLLER_CURE}` installs one; one that is "
            "elsewhere is named with --namespace."
        )
    for name, port in found:
        if port:
            return name, port
    raise ClusterError(
        f"the controllers in namespace {namespace} have no page: their container has no port named {PORT}. "
        f"`{CONTROLLER_CURE}` brings them up to date."
    )


def running(api: Reader, namespace: str) -> list[tuple[str, int]]:
    """Controllers that run, the oldest first, with the port of their page; 0 where there is none."""
    pods = api.get(names.path("pods", namespace), labelSelector=CONTROLLER).get("items") or []
    pods.sort(key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")))
    return [
        (str(pod["metadata"]["name"]), _port(pod))
        for pod in pods
        if pod.get("status", {}).get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")
    ]


def _port(pod: Object) -> int:
    ports = (port for container in pod["spec"]["containers"] for port in container.get("ports") or ())
    return next((int(port["containerPort"]) for port in ports if port.get("name") == PORT), 0)
