"""What goes on in a cluster: in a few lines, or all in one directory for who asks why a test failed."""

from __future__ import annotations

import http.client
import json
import shutil
from collections.abc import Callable
from pathlib import Path

from kubelab.api import Object, is_ready
from kubelab.cluster import Cluster
from kubelab.errors import ApiError, KubelabError

Sizes = dict[str, int]


def summary(cluster: Cluster) -> list[str]:
    """Which parts run, and the nodes; also of a cluster that is broken."""
    lines = [f"cluster {cluster.name}: {cluster.state.kind.value}, API server {cluster.state.server}"]
    for part in cluster.components.values():
        lines.append(f"  {part.name:26} {'running' if part.running else 'not running'}")
    try:
        nodes = cluster.api.items("/api/v1/nodes") if cluster.api.ready() else []
    except (OSError, http.client.HTTPException, ApiError):
        nodes = []
    hollow = [node for node in nodes if node["metadata"].get("labels", {}).get("type") == "hollow"]
    for node in nodes:
        if node not in hollow:
            name, room = node["metadata"]["name"], node["status"]["allocatable"]
            word = "Ready" if is_ready(node) else "NotReady"
            lines.append(f"  node {name:21} {word}, cpu {room['cpu']}, memory {room['memory']}")
    if hollow:
        lines.append(f"  and {len(hollow)} hollow nodes")
    return lines


def log_sizes(cluster: Cluster) -> Sizes:
    """How long the logs are now, so that a story can begin here."""
    return {file.name: file.stat().st_size for file in (cluster.run / "logs").glob("*.log")}


def tell(cluster: Cluster, directory: Path, since: Sizes | None = None) -> None:
    """Write events, objects, logs of components (since `since`) and of pods, as far as they can be had."""
    shutil.rmtree(directory, ignore_errors=True)
    (directory / "components").mkdir(parents=True)
    (directory / "pods").mkdir()
    for log in sorted((cluster.run / "logs").glob("*.log")):
        with log.open("rb") as source, (directory / "components" / log.name).open("wb") as copy:
            source.seek((since or {}).get(log.name, 0))
            shutil.copyfileobj(source, copy)

    def write(name: str, part: Callable[[], str]) -> None:
        try:
            text = part()
        except (KubelabError, OSError, http.client.HTTPException) as error:
            text = f"not available: {error}\n"  # the cluster may be broken: that is what the story is about
        (directory / name).write_text(text)

    write("status.txt", lambda: "\n".join(summary(cluster)))
    write("network-cuts.txt", lambda: "\n".join(map(str, cluster.state.cuts)))
    if not cluster.api.ready():
        write("events.txt", lambda: "the API server does not answer")
        return  # every further question would wait for its timeout
    write("events.txt", lambda: _events(cluster))
    write("pods.txt", lambda: cluster.kubectl("get", "pods", "-A", "-o", "wide", timeout=20))
    for path in ("pods", "nodes", "services", "persistentvolumeclaims", "resourcequotas"):
        answer = cluster.api.get(f"/api/v1/{path}")
        write(f"{path}.json", lambda answer=answer: json.dumps(answer, indent=1))  # type: ignore[misc]
    for pod in cluster.api.items("/api/v1/pods"):
        for status in pod["status"].get("containerStatuses", []):
            for previous in (False, True) if status.get("restartCount") else (False,):
                _write_log(cluster, write, pod["metadata"], status["name"], previous)


def _write_log(
    cluster: Cluster,
    write: Callable[[str, Callable[[], str]], None],
    pod: Object,
    container: str,
    previous: bool,
) -> None:
    namespace, name = pod["namespace"], pod["name"]
    file = f"pods/{namespace}.{name}.{container}{'.previous' if previous else ''}.log"
    write(file, lambda: cluster.logs(namespace, name, container, previous))


def _events(cluster: Cluster) -> str:
    def when(event: Object) -> str:
        times = (event.get("eventTime"), event.get("lastTimestamp"), event["metadata"]["creationTimestamp"])
        return str(next(time for time in times if time))

    lines = []
    for event in sorted(cluster.api.items("/api/v1/events"), key=when):
        about = event["involvedObject"]
        place = f"{about.get('namespace', '')}/{about['kind']}/{about['name']}"
        words = f"{event.get('type')} {place} {event.get('reason')}: {event.get('message')}"
        lines.append(f"{when(event)} {words}")
    return "\n".join(lines) + "\n"
