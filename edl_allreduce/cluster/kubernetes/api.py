"""The API server: JSON in, JSON out. The only module that imports the kubernetes client.

The client brings what is hard: kubeconfig files, log-in helpers, tokens that are renewed, TLS. Its generated
classes are not used: manifests are plain dicts, and fields that it does not know pass through.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from edl_allreduce.cluster.kubernetes.names import Object
from edl_allreduce.errors import ApiRefused, ClusterUnreachable, SetupError

REQUEST_SECONDS = 10.0
"""How long the API server may take to answer before the request is tried again."""
POOL = 16
"""Connections that are kept for requests at the same time."""
SERVICE_HOST = "KUBERNETES_SERVICE_HOST"
"""Set in every pod."""


class Api:
    """Requests to one API server. Every method blocks; any thread may call."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.server: str = client.configuration.host

    @classmethod
    def connect(cls, *, force_kubeconfig: bool = False) -> Api:
        """With the pod's own account inside a cluster, with the user's kubeconfig file outside."""
        kubernetes = client_library()
        configuration = kubernetes.client.Configuration()
        try:
            if os.environ.get(SERVICE_HOST) and not force_kubeconfig:
                kubernetes.config.load_incluster_config(client_configuration=configuration)
            else:
                # Read now: the library looks at the variable only when it is imported.
                file = os.environ.get("KUBECONFIG") or None
                kubernetes.config.load_kube_config(config_file=file, client_configuration=configuration)
        except kubernetes.config.ConfigException as error:
            raise ClusterUnreachable(
                f"no cluster is configured: {error} "
                "Name one in $KUBECONFIG or ~/.kube/config (`kubectl get nodes` shows whether it works); "
                "`scripts/cluster up` starts one on this machine. Without --image_name the job runs here."
            ) from error
        configuration.retries = False  # who asks knows better what may be repeated
        configuration.connection_pool_maxsize = POOL
        return cls(kubernetes.client.ApiClient(configuration))

    def get(self, path: str, **query: str | int) -> Object:
        return self._object("GET", path, None, query)

    def create(self, path: str, manifest: Object, **query: str | int) -> Object:
        return self._object("POST", path, manifest, query)

    def patch(self, path: str, change: Object) -> Object:
        """Change the given fields (merge patch)."""
        return self._object("PATCH", path, change, {}, "application/merge-patch+json")

    def replace(self, path: str, whole: Object) -> Object:
        """Write the whole object over the version that its metadata names; 409 if that is not the last."""
        return self._object("PUT", path, whole, {})

    def delete(self, path: str, grace: int | None = None, uid: str = "") -> bool:
        """Delete an object, only if it is the one with `uid`; False when it is gone already."""
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        if uid:
            options["preconditions"] = {"uid": uid}
        try:
            self._object("DELETE", path, options, {})
        except ApiRefused as error:
            if error.status in (404, 409):  # 409: another object has this name by now
                return False
            raise
        return True

    def text(self, path: str, **query: str | int) -> str:
        """What is not JSON: a pod's log."""
        response = self._send("GET", path, None, query, "application/json", REQUEST_SECONDS)
        return self._body(response).decode(errors="replace")

    def lines(self, path: str, timeout: float, **query: str | int) -> Iterator[bytes]:
        """An answer that has no end, line by line as it comes. `timeout`: the longest silence in it."""
        response = self._send("GET", path, None, query, "application/json", timeout)
        urllib3 = _urllib3()
        rest = b""
        try:
            for chunk in response.stream(64 * 1024, decode_content=False):
                *whole, rest = (rest + chunk).split(b"\n")
                yield from whole
            if rest:
                yield rest
        except urllib3.exceptions.HTTPError as error:
            raise ClusterUnreachable(f"the stream from {self.server} broke: {error}") from error
        finally:
            response.close()

    def forward(self, namespace: str, pod: str, port: int) -> Any:
        """A socket to a port of a pod, through the API server."""
        kubernetes = client_library()
        from kubernetes import stream

        core = kubernetes.client.CoreV1Api(self._client)
        method = core.connect_get_namespaced_pod_portforward
        try:
            tunnel = stream.portforward(method, pod, namespace, ports=str(port))
        except kubernetes.client.ApiException as error:
            raise ApiRefused(
                f"no tunnel to pod {pod}: {error.reason}", status=int(error.status or 0)
            ) from error
        except AttributeError as error:  # the client trips over a refusal that has no body
            raise ApiRefused(f"no tunnel to pod {pod}: {error.__context__}", status=0) from error
        return tunnel.socket(port)

    def may(self, namespace: str, verb: str, resource: str) -> bool:
        """Whether RBAC allows this account to do something."""
        group, _, kind = resource.rpartition("/")
        attributes = {"namespace": namespace, "verb": verb, "resource": kind, "group": group}
        review = self.create(
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            {"spec": {"resourceAttributes": attributes}},
        )
        return bool(review.get("status", {}).get("allowed"))

    # ------------------------------------------------------------------------------------------ transport

    def _object(
        self,
        method: str,
        path: str,
        body: Object | None,
        query: Mapping[str, str | int],
        content_type: str = "application/json",
    ) -> Object:
        response = self._send(method, path, body, query, content_type, REQUEST_SECONDS)
        return _decoded(self._body(response))

    def _send(
        self,
        method: str,
        path: str,
        body: Object | None,
        query: Mapping[str, str | int],
        content_type: str,
        timeout: float,
    ) -> Any:
        urllib3 = _urllib3()
        headers = {"Accept": "application/json", "User-Agent": "elasticdl"}
        if body is not None:
            headers["Content-Type"] = content_type
        self._client.update_params_for_auth(headers, [], ["BearerToken"])
        url = self.server + path + ("?" + urlencode(query) if query else "")
        try:
            response = self._client.rest_client.pool_manager.request(
                method,
                url,
                body=None if body is None else json.dumps(body),
                headers=headers,
                preload_content=False,
                timeout=urllib3.Timeout(connect=REQUEST_SECONDS, read=timeout),
            )
        except urllib3.exceptions.HTTPError as error:
            raise ClusterUnreachable(
                f"no answer from the API server at {self.server}: {_first_cause(error)}. "
                "Is the cluster up, and is this the right one? `kubectl cluster-info` asks the same server."
            ) from error
        if response.status >= 300:
            raise _refusal(response, self._body(response))
        return response

    def _body(self, response: Any) -> bytes:
        """A reply can end in the middle, too."""
        urllib3 = _urllib3()
        try:
            return bytes(response.data)
        except urllib3.exceptions.HTTPError as error:
            raise ClusterUnreachable(f"the answer from {self.server} broke: {_first_cause(error)}") from error
        finally:
            response.release_conn()


def _refusal(response: Any, content: bytes) -> ApiRefused:
    status = _decoded(content)
    after = str(response.headers.get("Retry-After", ""))
    return ApiRefused(
        str(status.get("message") or content.decode(errors="replace")[:500] or response.reason),
        status=int(response.status),
        reason=str(status.get("reason", "")),
        retry_after=float(after) if after.isdecimal() else 0.0,
    )


def _decoded(content: bytes) -> Object:
    try:
        value = json.loads(content)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _first_cause(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason if isinstance(reason, Exception) else error)


def client_library() -> Any:
    """The client, imported only where a cluster is asked."""
    try:
        import kubernetes.client
        import kubernetes.config
    except ImportError as error:
        raise SetupError(
            "jobs on Kubernetes need the Python package kubernetes: pip install 'edl-allreduce[kubernetes]'"
        ) from error
    return kubernetes


def _urllib3() -> Any:
    """Comes with the client."""
    import urllib3
    import urllib3.exceptions

    return urllib3
