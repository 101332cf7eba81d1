"""What was going on in a cluster, in one directory: for whoever has to find out why a test failed."""

from __future__ import annotations

import http.client
import json
import shutil
from collections.abc import Callable
from pathlib import Path

from kubelab.api import Object
from kubelab.cluster import Cluster
from kubelab.errors import KubelabError

Sizes = dict[str, int]


def log_sizes(cluster: Cluster) -> Sizes:
    """How long the logs are now, so that a story can begin here."""
    return {file.name: file.stat().st_size for file in (cluster.run / "logs").glob("*.log")}


def tell(cluster: Cluster, directory: Path, since: Sizes | None = None) -> None:
    """Write events, objects, logs of components (since `since`) and of pods. Never raises, never hangs."""
    shutil.rmtree(directory, ignore_errors=True)
    (directory / "components").mkdir(parents=True)
    for log in sorted((cluster.run / "logs").glob("*.log")):
        with log.open("rb") as source, (directory / "components" / log.name).open("wb") as copy:
            source.seek((since or {}).get(log.name, 0))
            shutil.copyfileobj(source, copy)
    (directory / "status.txt").write_text(_try(lambda: "\n".join(cluster.status())))
    (directory / "network-cuts.txt").write_text("\n".join(map(str, cluster.state.cuts)) + "\n")
    (directory / "events.txt").write_text(_try(lambda: _events(cluster)))
    (directory / "pods.txt").write_text(
        _try(lambda: cluster.kubectl("get", "pods", "-A", "-o", "wide", timeout=20))
    )
    for kind in ("pods", "nodes", "services", "persistentvolumeclaims", "resourcequotas"):
        path = f"/api/v1/{kind}"
        (directory / f"{kind}.json").write_text(_try(lambda p=path: json.dumps(cluster.api.get(p), indent=1)))  # type: ignore[misc]
    _try(lambda: _pod_logs(cluster, directory / "pods"))


def _try(part: Callable[[], str]) -> str:
    """The cluster may be broken: that is what the story is about."""
    try:
        return part()
    except (KubelabError, OSError, http.client.HTTPException) as error:
        return f"not available: {error}\n"


def _events(cluster: Cluster) -> str:
    def when(event: Object) -> str:
        return str(
            event.get("eventTime") or event.get("lastTimestamp") or event["metadata"]["creationTimestamp"]
        )

    lines = []
    for event in sorted(cluster.api.items("/api/v1/events"), key=when):
        about = event["involvedObject"]
        place = f"{about.get('namespace', '')}/{about['kind']}/{about['name']}"
        lines.append(
            f"{when(event)} {event.get('type')} {place} {event.get('reason')}: {event.get('message')}"
        )
    return "\n".join(lines) + "\n"


def _pod_logs(cluster: Cluster, directory: Path) -> str:
    directory.mkdir()
    for pod in cluster.api.items("/api/v1/pods"):
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        for status in pod["status"].get("containerStatuses", []):
            for previous in (False, True) if status.get("restartCount") else (False,):
                file = directory / f"{namespace}.{name}.{status['name']}{'.previous' if previous else ''}.log"
                text = _try(
                    lambda s=status, p=previous, n=namespace, o=name: cluster.logs(n, o, s["name"], p)
                )  # type: ignore[misc]
                file.write_text(text)
    return ""
