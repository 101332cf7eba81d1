"""A job's pods as the API server shows them → as `reconcile` sees them. Pure, over plain dicts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from edl_allreduce.core import pod_causes
from edl_allreduce.core.causes import FREE
from edl_allreduce.core.controller import mail
from edl_allreduce.core.controller.facts import Master, Stage, Workers
from edl_allreduce.core.controller.mail import Progress
from edl_allreduce.core.controller.reconcile import JOB_ENDS
from edl_allreduce.core.controller.survey import time_of

Object = Mapping[str, Any]

LONGEST_TEXT: Final = 500


def owned_by(found: Object, uid: str) -> bool:
    return any(owner.get("uid") == uid for owner in found["metadata"].get("ownerReferences") or ())


def master(pod: Object) -> Master:
    """The pod of a job's master."""
    metadata = pod["metadata"]
    annotations = metadata.get("annotations") or {}
    crashes = annotations.get(mail.CRASHES, "")
    found = Master(
        name=metadata["name"],
        uid=metadata["uid"],
        stage=Stage.RUNNING,
        crashes=int(crashes) if crashes.isascii() and crashes.isdecimal() and len(crashes) < 6 else 0,
        orders=mail.orders_in(annotations),
        progress=mail.read_progress(annotations.get(mail.PROGRESS, "")),
    )
    match pod_causes.read(pod):
        case pod_causes.Coming(text, broken):
            return replace(found, stage=Stage.COMING, text=text[:LONGEST_TEXT], broken=broken)
        case pod_causes.Leaving(text, until):
            return replace(found, stage=Stage.LEAVING, text=text[:LONGEST_TEXT], until=until)
        case pod_causes.Over(cause, text):
            return replace(
                found,
                stage=Stage.OVER,
                text=f"{text}{_last_line(pod)}"[:LONGEST_TEXT],
                disrupted=cause in FREE,
                until=_ended(pod),
                progress=_with_last_word(found.progress, pod),
            )
    return found


def _ended(pod: Object) -> float:
    containers = pod.get("status", {}).get("containerStatuses") or ()
    times = [time_of(one.get("state", {}).get("terminated", {}).get("finishedAt")) for one in containers]
    return max(times, default=0.0)


def _last_line(pod: Object) -> str:
    """Of its log, which the kubelet keeps of one that crashed."""
    for container in pod.get("status", {}).get("containerStatuses") or ():
        words = str(container.get("state", {}).get("terminated", {}).get("message", "")).strip()
        if words and not words.startswith("{"):
            return f": {words.splitlines()[-1].strip()}"
    return ""


def _with_last_word(progress: Progress | None, pod: Object) -> Progress | None:
    """What the kubelet kept of the master's end counts where its last report did not arrive."""
    if progress is not None and progress.phase in JOB_ENDS:
        return progress
    for container in pod.get("status", {}).get("containerStatuses") or ():
        words = container.get("state", {}).get("terminated", {}).get("message", "")
        try:
            said = json.loads(words)
        except (ValueError, RecursionError):
            continue  # the end of its log, where it crashed
        if isinstance(said, dict) and said.get("phase") in JOB_ENDS:
            reason = str(said.get("reason", ""))[: mail.LONGEST_TEXT]
            return replace(progress or Progress(), phase=said["phase"], reason=reason)
    return progress


def workers(pods: Iterable[Object]) -> Workers:
    """Those that have not ended."""
    found = Workers()
    names: list[str] = []
    for pod in pods:
        match pod_causes.read(pod):
            case pod_causes.Coming(text):
                found = replace(found, coming=found.coming + 1, text=found.text or text[:LONGEST_TEXT])
            case pod_causes.Running():
                found = replace(found, running=found.running + 1)
            case pod_causes.Leaving():
                found = replace(found, leaving=found.leaving + 1)
            case pod_causes.Over():
                continue
        names.append(pod["metadata"]["name"])
    return replace(found, pods=tuple(names))
