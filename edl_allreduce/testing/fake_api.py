"""An API server in memory: versions, conflicts, watches and owners as the real one has them, no schema.

What a kubelet, a scheduler and a person would do is said by the test: `bind`, `run_pod`, `end_pod`, `remove`.
It is made for controllers and masters that speak through `cluster.kubernetes.api`: any thread may call.
"""

from __future__ import annotations

import copy
import json
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from edl_allreduce import clock
from edl_allreduce.errors import ApiRefused
from edl_allreduce.spec.resource import API_VERSION, PLURAL

Object = dict[str, Any]

_PATH = re.compile(r"/apis?/(?P<group>.+?)(?:/namespaces/(?P<namespace>[^/]+))?/(?P<plural>[a-z]+)$")
KINDS = {
    "networkpolicies": "NetworkPolicy", "configmaps": "ConfigMap",
    "poddisruptionbudgets": "PodDisruptionBudget",
    "pods": "Pod", "nodes": "Node", "services": "Service", "secrets": "Secret", "events": "Event",
    "namespaces": "Namespace", "leases": "Lease", "priorityclasses": "PriorityClass",
    "trainingjobs": "TrainingJob",
}  # fmt: skip
GRACE = 30.0


@dataclass
class Refusal:
    """A rule of `FakeApi.refuse`; `fired` counts."""

    method: str
    path: re.Pattern[str]
    status: int
    times: int
    words: str
    fired: int = 0


class FakeApi:
    """Paths as the real one has them. `before` is called with method and path before each request."""

    def __init__(self, wall: Callable[[], float] = clock.wall) -> None:
        self.server = "https://fake"
        self.before: Callable[[str, str], None] = lambda method, path: None
        self.requests: list[tuple[str, str]] = []
        self._wall = wall
        self._objects: dict[str, Object] = {}
        self._log: list[tuple[int, str, str, Object]] = []
        """Version, path of the collection in all namespaces, type, object."""
        self._version = 0
        self._news = threading.Condition()
        self._refusals: list[Refusal] = []
        self._closed = False

    # ----------------------------------------------------------------------------------- what tests say

    def refuse(self, method: str, path: str, status: int = 500, times: int = 1, words: str = "") -> Refusal:
        """Answer the next requests of this kind with an error."""
        rule = Refusal(method, re.compile(path), status, times, words)
        self._refusals.append(rule)
        return rule

    def bind(self, path: str, node: str) -> None:
        """As the scheduler does."""
        self._change(path, lambda pod: pod["spec"].update(nodeName=node))

    def run_pod(self, path: str, node: str = "") -> None:
        """Its container runs."""
        if node:
            self.bind(path, node)
        self._change(path, lambda pod: pod.update(status={"phase": "Running"}))

    def end_pod(self, path: str, code: int = 0, message: str = "", reason: str = "") -> None:
        """Its container ended; with a `reason` the kubelet ended the pod as a whole."""
        ending = {"exitCode": code, "message": message, "finishedAt": self._stamp()}
        phase = "Succeeded" if code == 0 else "Failed"
        status: Object = {"phase": phase, "containerStatuses": [{"state": {"terminated": ending}}]}
        self._change(
            path, lambda pod: pod.update(status={**status, **({"reason": reason} if reason else {})})
        )

    def remove(self, path: str) -> None:
        """It is gone, whoever wanted it or not."""
        with self._news:
            self._drop(path)

    def all(self, kind: str, namespace: str = "") -> list[Object]:
        """Objects of a plural kind."""
        found = self._objects.items()
        return [
            copy.deepcopy(one)
            for path, one in found
            if path.split("/")[-2] == kind
            and (not namespace or one["metadata"].get("namespace") == namespace)
        ]

    def close(self) -> None:
        """End all watches."""
        with self._news:
            self._closed = True
            self._news.notify_all()

    # ------------------------------------------------------------------------------- what programs ask

    def get(self, path: str, **query: str | int) -> Object:
        self._ask("GET", path)
        with self._news:
            if path in self._objects:
                return copy.deepcopy(self._objects[path])
            if path == f"/apis/{API_VERSION}":
                return {"resources": [{"name": PLURAL}]}
            collection = _PATH.fullmatch(path)
            if collection is None or collection["plural"] not in KINDS:
                raise ApiRefused(f"{path} not found", status=404, reason="NotFound")
            items = [copy.deepcopy(one) for one in self._within(path, query)]
            return {"items": items, "metadata": {"resourceVersion": str(self._version)}}

    def create(self, path: str, manifest: Object, **query: str | int) -> Object:
        self._ask("POST", path)
        with self._news:
            collection = _PATH.fullmatch(path)
            assert collection is not None, path
            made = copy.deepcopy(manifest)
            metadata = made.setdefault("metadata", {})
            if "generateName" in metadata and "name" not in metadata:
                metadata["name"] = f"{metadata['generateName']}{uuid.uuid4().hex[:6]}"
            if collection["namespace"]:
                metadata["namespace"] = collection["namespace"]
            where = f"{path}/{metadata['name']}"
            if where in self._objects:
                words = f"{collection['plural']} {metadata['name']!r} already exists"
                raise ApiRefused(words, status=409, reason="AlreadyExists")
            metadata.update(uid=str(uuid.uuid4()), generation=1, creationTimestamp=self._stamp())
            made["kind"] = KINDS[collection["plural"]]
            group = collection["group"]
            made.setdefault("apiVersion", group)
            if collection["plural"] == "pods":
                made.setdefault("status", {"phase": "Pending"})
            self._put(where, made, "ADDED")
            return copy.deepcopy(self._objects[where])

    def patch(self, path: str, change: Object) -> Object:
        self._ask("PATCH", path)
        with self._news:
            before = self._found(path)
            metadata = change.get("metadata") or {}
            for name in ("uid", "resourceVersion"):
                self._same(before, metadata.get(name), name)
            self._put(path, _merged(before, change), "MODIFIED")
            return copy.deepcopy(self._objects[path])

    def replace(self, path: str, whole: Object) -> Object:
        self._ask("PUT", path)
        with self._news:
            status = path.endswith("/status")
            where = path.removesuffix("/status")
            before = self._found(where)
            for name in ("uid", "resourceVersion"):
                self._same(before, whole["metadata"].get(name), name)
            if status:
                after = {**before, "status": copy.deepcopy(whole.get("status", {}))}
            else:
                after = copy.deepcopy(whole)
                if "status" in before:
                    after["status"] = before["status"]
                if before.get("spec") != after.get("spec"):
                    after["metadata"]["generation"] = before["metadata"].get("generation", 0) + 1
            self._put(where, after, "MODIFIED")
            return copy.deepcopy(self._objects[where])

    def delete(self, path: str, grace: int | None = None, uid: str = "") -> bool:
        self._ask("DELETE", path)
        with self._news:
            found = self._objects.get(path)
            if found is None or (uid and found["metadata"]["uid"] != uid):
                return False
            runs = found["kind"] == "Pod" and (found.get("status") or {}).get("phase") == "Running"
            if runs and grace != 0:
                if "deletionTimestamp" not in found["metadata"]:
                    seconds = (found.get("spec") or {}).get("terminationGracePeriodSeconds", GRACE)
                    after = copy.deepcopy(found)
                    after["metadata"]["deletionTimestamp"] = self._stamp(seconds)
                    self._put(path, after, "MODIFIED")
            else:
                self._drop(path)
            return True

    def lines(self, path: str, timeout: float, **query: str | int) -> Iterator[bytes]:
        """A watch: until `close`."""
        seen = int(query.get("resourceVersion", 0))
        while True:
            with self._news:
                fresh = [one for one in self._log if one[0] > seen and _covers(path, one[1])]
                if self._closed:
                    return
                if not fresh:
                    self._news.wait(1.0)
            for version, _, kind, found in fresh:
                seen = version
                if _chosen(found, query):
                    yield json.dumps({"type": kind, "object": found}).encode()

    # ------------------------------------------------------------------------------------------- inside

    def _ask(self, method: str, path: str) -> None:
        self.before(method, path)
        self.requests.append((method, path))
        for rule in self._refusals:
            if rule.method == method and rule.path.search(path) and rule.fired < rule.times:
                rule.fired += 1
                words = rule.words or f"{method} {path} is refused"
                raise ApiRefused(words, status=rule.status, reason="Forbidden")

    def _stamp(self, later: float = 0.0) -> str:
        return datetime.fromtimestamp(self._wall() + later, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _found(self, path: str) -> Object:
        if path not in self._objects:
            raise ApiRefused(f"{path} not found", status=404, reason="NotFound")
        return self._objects[path]

    def _same(self, before: Object, given: object, name: str) -> None:
        if given is not None and given != before["metadata"][name]:
            words = f"the object has been modified: {name} is {before['metadata'][name]}, not {given}"
            raise ApiRefused(words, status=409, reason="Conflict")

    def _within(self, path: str, query: dict[str, str | int]) -> Iterator[Object]:
        for where, found in self._objects.items():
            if _covers(path, where.rpartition("/")[0]) and _chosen(found, query):
                yield found

    def _change(self, path: str, act: Callable[[Object], object]) -> None:
        with self._news:
            after = copy.deepcopy(self._found(path))
            act(after)
            self._put(path, after, "MODIFIED")

    def _put(self, path: str, found: Object, kind: str) -> None:
        self._version += 1
        found["metadata"]["resourceVersion"] = str(self._version)
        self._objects[path] = found
        self._log.append((self._version, path.rpartition("/")[0], kind, copy.deepcopy(found)))
        self._news.notify_all()

    def _drop(self, path: str) -> None:
        found = self._objects.pop(path, None)
        if found is None:
            return
        self._version += 1
        found["metadata"]["resourceVersion"] = str(self._version)
        self._log.append((self._version, path.rpartition("/")[0], "DELETED", found))
        uid = found["metadata"]["uid"]
        for other, one in list(self._objects.items()):  # as the garbage collector does
            owners = one["metadata"].get("ownerReferences") or []
            if any(owner["uid"] == uid for owner in owners):
                self._drop(other)
        self._news.notify_all()


def _covers(collection: str, place: str) -> bool:
    """Whether objects at `place` belong to a collection, which may be that of all namespaces."""
    return place == collection or re.sub(r"/namespaces/[^/]+/", "/", place) == collection


def _chosen(found: Object, query: dict[str, str | int]) -> bool:
    labels = found["metadata"].get("labels") or {}
    for part in filter(None, str(query.get("labelSelector", "")).split(",")):
        name, _, value = part.partition("=")
        if labels.get(name) != value:
            return False
    for part in filter(None, str(query.get("fieldSelector", "")).split(",")):
        name, _, value = part.partition("=")
        if name == "metadata.name" and found["metadata"]["name"] != value:
            return False
    return True


def _merged(before: Any, change: Any) -> Any:
    """A merge patch: None removes, dicts are merged, everything else is replaced."""
    if not isinstance(change, dict):
        return copy.deepcopy(change)
    after = dict(before) if isinstance(before, dict) else {}
    for name, value in change.items():
        if value is None:
            after.pop(name, None)
        else:
            after[name] = _merged(after.get(name), value)
    return after
