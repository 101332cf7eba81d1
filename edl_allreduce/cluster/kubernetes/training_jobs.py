"""TrainingJobs as the API server keeps them: is the cluster ready for them, and what do they say?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from edl_allreduce.cluster.kubernetes.names import Object
from edl_allreduce.core.trainingjob import FINAL, Condition, Phase, moment
from edl_allreduce.errors import ApiRefused
from edl_allreduce.spec.resource import API_VERSION, path

NOT_FOUND = 404
FORBIDDEN = 403
CONTROLLER_CURE = "kubectl apply -k manifests/controller"
UNSEEN = f"no controller has looked at it yet. Is one there? {CONTROLLER_CURE}"


class TrainingJobApi(Protocol):
    """The part of the API that is needed here."""

    def get(self, path: str, **query: str | int) -> Object: ...

    def patch(self, path: str, change: Object) -> Object: ...


def installed(api: TrainingJobApi) -> bool:
    """Whether the cluster knows TrainingJobs. Everybody may ask this."""
    try:
        api.get(f"/apis/{API_VERSION}")
    except ApiRefused as error:
        if error.status in (NOT_FOUND, FORBIDDEN):
            return False
        raise
    return True


def listed(api: TrainingJobApi, namespace: str = "") -> list[Object]:
    """All of a namespace, or of the cluster; none where there are none, or where one may not look."""
    try:
        return list(api.get(path(namespace)).get("items") or [])
    except ApiRefused as error:
        if error.status in (NOT_FOUND, FORBIDDEN):
            return []
        raise


def scale(api: TrainingJobApi, namespace: str, name: str, workers: int | None) -> None:
    """As `kubectl scale` does: it has this size from now on. None: the autoscaler decides again."""
    if workers is None:  # the scale subresource knows numbers only
        api.patch(path(namespace, name), {"spec": {"workers": {"replicas": None}}})
    else:
        api.patch(path(namespace, name, "scale"), {"spec": {"replicas": workers}})


@dataclass(frozen=True)
class Account:
    """What the status of a TrainingJob says; nothing of it needs to be there."""

    namespace: str
    name: str
    phase: str
    ready: int
    target: int
    minimum: int
    maximum: int
    step: int
    total_steps: int
    percent: int | None
    created: float
    """Seconds since 1970, here and below."""
    starts: float | None
    """When one that waits is expected to begin; None where it runs, or nobody knows."""
    ends: float | None
    """When it is expected to end; None where nobody knows."""
    goodput: str
    reason: str
    """Of the plan, or of the condition that tells most."""

    @property
    def over(self) -> bool:
        return self.phase in FINAL


def account(given: Object) -> Account:
    """Read one; a status that makes no sense reads as an empty one."""
    metadata, spec, status = (_part(given, key) for key in ("metadata", "spec", "status"))
    workers, trainer, plan = (_part(status, key) for key in ("workers", "trainerStatus", "plan"))
    sizes, older = _part(spec, "workers"), _part(spec, "trainer")
    percent = trainer.get("progressPercentage")
    return Account(
        namespace=str(metadata.get("namespace", "")),
        name=str(metadata.get("name", "")),
        phase=str(status.get("phase") or Phase.PENDING),
        ready=_count(workers.get("ready")),
        target=_count(workers.get("target")),
        minimum=_count(sizes.get("min") or older.get("min-instance")) or 1,
        maximum=_count(sizes.get("max") or older.get("max-instance")),
        step=_count(trainer.get("step")),
        total_steps=_count(trainer.get("totalSteps")),
        percent=None if percent is None else _count(percent),
        created=moment(metadata.get("creationTimestamp")) or 0.0,
        starts=moment(plan.get("expectedStart")),
        ends=moment(plan.get("expectedEnd")),
        goodput=str(status.get("goodput") or ""),
        reason=str(_told(status) or plan.get("reason") or UNSEEN),
    )


def _told(status: Object) -> str:
    """What matters more than the plan: why a job cannot begin, ended, or waits for somebody."""
    found = {
        str(each.get("type")): each
        for each in status.get("conditions") or []
        if isinstance(each, dict) and each.get("message")
    }
    created = found.get(Condition.CREATED, {})
    if created.get("status") == "False":
        return str(created["message"])
    for kind in (Condition.FAILED, Condition.SUCCEEDED, Condition.SUSPENDED, Condition.DEGRADED):
        if found.get(kind, {}).get("status") == "True":
            return str(found[kind]["message"])
    return ""


def _part(whole: Object, key: str) -> Object:
    found = whole.get(key)
    return found if isinstance(found, dict) else {}


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
