"""What the API server has, kept up to date by watches; one asyncio loop owns it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from edl_allreduce.cluster.kubernetes.api import Api
from edl_allreduce.cluster.kubernetes.names import APP, Object
from edl_allreduce.cluster.kubernetes.watching import Changed, Listed, Lister, Removed, Seen, Watcher
from edl_allreduce.spec.resource import API_VERSION, KIND, path


@dataclass(frozen=True)
class Collection:
    """Objects of one kind, in all namespaces."""

    path: str
    api_version: str
    kind: str
    chosen: dict[str, str] = field(default_factory=dict)
    rule: str = ""
    """What RBAC calls it."""


JOBS = Collection(path(), API_VERSION, KIND, rule="trainingjobs.elasticdl.org")
PODS = Collection("/api/v1/pods", "v1", "Pod", rule="pods")
NODES = Collection("/api/v1/nodes", "v1", "Node", rule="nodes")
SERVICES = Collection("/api/v1/services", "v1", "Service", {"labelSelector": f"app={APP}"}, rule="services")
NAMESPACES = Collection("/api/v1/namespaces", "v1", "Namespace", rule="namespaces")
CLASSES = Collection(
    "/apis/scheduling.k8s.io/v1/priorityclasses",
    "scheduling.k8s.io/v1",
    "PriorityClass",
    rule="priorityclasses.scheduling.k8s.io",
)
ALL = (JOBS, PODS, NODES, SERVICES, NAMESPACES, CLASSES)


def key_of(found: Object) -> str:
    """NAMESPACE/NAME, or the name of what has no namespace."""
    metadata = found["metadata"]
    namespace = metadata.get("namespace", "")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])


def version_of(found: Object) -> int:
    text = str(found["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdecimal() else 0


class Mirror:
    """All collections. `changed` is called after each piece of news."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self.objects: dict[str, dict[str, Object]] = {one.kind: {} for one in ALL}
        self.listed: set[str] = set()
        self._changed = changed
        self._watchers: list[Watcher] = []

    @property
    def whole(self) -> bool:
        """Every collection was listed once."""
        return len(self.listed) == len(ALL)

    def missing(self) -> list[str]:
        return [one.rule for one in ALL if one.kind not in self.listed]

    def of(self, collection: Collection) -> Iterable[Object]:
        return self.objects[collection.kind].values()

    def get(self, collection: Collection, key: str) -> Object | None:
        return self.objects[collection.kind].get(key)

    def put(self, found: Object) -> None:
        """An object as the API server answered, so that nobody acts on what it was before."""
        mine = self.objects[found["kind"]]
        before = mine.get(key_of(found))
        same = before is not None and before["metadata"]["uid"] == found["metadata"]["uid"]
        if not same or before is None or version_of(found) >= version_of(before):
            mine[key_of(found)] = found

    def hear(self, collection: Collection, seen: Seen) -> None:
        mine = self.objects[collection.kind]
        match seen:
            case Listed(objects):
                self.objects[collection.kind] = {key_of(one): one for one in objects}
                self.listed.add(collection.kind)
            case Changed(found):
                self.put(found)
            case Removed(found):
                present = mine.get(key_of(found))
                if present is not None and present["metadata"]["uid"] == found["metadata"]["uid"]:
                    del mine[key_of(found)]
        self._changed()

    # -------------------------------------------------------------------------------------------- watches

    def follow(self, api: Lister) -> None:
        """From now on, in threads of their own; call it in the loop that owns this."""
        loop = asyncio.get_running_loop()
        for collection in ALL:
            watcher = Watcher(
                api,
                collection.path,
                collection.chosen,
                _deliver_to(loop, self, collection),
                kind={"apiVersion": collection.api_version, "kind": collection.kind},
                what=collection.rule,
            )
            self._watchers.append(watcher)
            # Daemons: a watch waits for the server, and the process must not wait for the watch.
            threading.Thread(target=watcher.run, name=f"watch-{collection.kind}", daemon=True).start()

    def close(self) -> None:
        for watcher in self._watchers:
            watcher.close()


def _deliver_to(
    loop: asyncio.AbstractEventLoop, mirror: Mirror, collection: Collection
) -> Callable[[Seen], None]:
    def deliver(seen: Seen) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(mirror.hear, collection, seen)

    return deliver


def look(api: Api) -> Mirror:
    """Everything as it is now, once."""
    mirror = Mirror()
    for collection in ALL:
        kind = {"apiVersion": collection.api_version, "kind": collection.kind}
        items = api.get(collection.path, **collection.chosen).get("items") or []
        mirror.hear(collection, Listed([{**kind, **item} for item in items], 0.0))
    return mirror
