"""A small client of the API server: JSON in, JSON out."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from kubelab.errors import ApiError

Object = dict[str, Any]
POD_ENDED = ("Succeeded", "Failed")


class Api:
    """Requests to one API server with one token; each on a connection of its own."""

    def __init__(self, server: str, authority: Path, token: str) -> None:
        self.server = server
        self.token = token
        self._address = urlsplit(server)
        self._tls = ssl.create_default_context(cafile=str(authority))

    def connect(self, timeout: float = 30.0) -> http.client.HTTPSConnection:
        """A new connection to the API server."""
        host, port = self._address.hostname, self._address.port
        return http.client.HTTPSConnection(host or "", port, timeout=timeout, context=self._tls)

    def text(
        self,
        method: str,
        path: str,
        body: Any = None,
        content_type: str = "application/json",
        timeout: float = 30.0,
        query: Mapping[str, str | int] | None = None,
    ) -> str:
        """Send a request and return the answer's body as text."""
        connection = self.connect(timeout)
        try:
            connection.request(
                method,
                path + ("?" + urlencode(query) if query else ""),
                None if body is None else json.dumps(body),
                {"Authorization": f"Bearer {self.token}", "Content-Type": content_type},
            )
            response = connection.getresponse()
            content = response.read().decode(errors="replace")
        finally:
            connection.close()
        if response.status >= 400:
            try:
                status = json.loads(content)
            except ValueError:
                status = {}
            raise ApiError(
                response.status, status.get("reason", response.reason), status.get("message", content)
            )
        return content

    def get(self, path: str, **query: str | int) -> Object:
        """Read an object or a list."""
        return _object(self.text("GET", path, query=query))

    def items(self, path: str, **query: str | int) -> list[Object]:
        """The items of a list."""
        return list(self.get(path, **query).get("items") or [])

    def create(self, path: str, body: Object) -> Object:
        """Create an object in the collection at `path`."""
        return _object(self.text("POST", path, body))

    def patch(self, path: str, body: Object) -> Object:
        """Change the given fields of an object (merge patch)."""
        return _object(self.text("PATCH", path, body, "application/merge-patch+json"))

    def delete(self, path: str, grace: int | None = None) -> None:
        """Delete an object, or all of a collection; one that is gone already is fine."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        body = options if grace is None else {**options, "gracePeriodSeconds": grace}
        try:
            self.text("DELETE", path, body, timeout=120)  # a collection of hundreds takes its time
        except ApiError as error:
            if error.status != 404:
                raise

    def ready(self) -> bool:
        """Whether the API server answers and says that it is ready."""
        try:
            return self.text("GET", "/readyz", timeout=2) == "ok"
        except (OSError, http.client.HTTPException, ApiError):
            return False


def _object(text: str) -> Object:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise TypeError(f"expected an object from the API server, got {text[:100]!r}")
    return value


def condition(conditions: Iterable[Object] | None, kind: str) -> Object | None:
    """The condition of one type from an object's status, or None."""
    return next((entry for entry in conditions or () if entry["type"] == kind), None)


def is_ready(node_or_pod: Object) -> bool:
    """Whether a node or a pod has the condition Ready."""
    found = condition(node_or_pod.get("status", {}).get("conditions"), "Ready")
    return found is not None and found["status"] == "True"


def takes_pods(node: Object) -> bool:
    """Whether a node is Ready and free of the taints of the time before, which go a little later."""
    taints = {taint["key"] for taint in node["spec"].get("taints", ())}
    return is_ready(node) and not taints & {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}


def pod_path(namespace: str, name: str = "") -> str:
    """The path of a pod, or of a namespace's pods."""
    return f"/api/v1/namespaces/{namespace}/pods" + (f"/{name}" if name else "")
