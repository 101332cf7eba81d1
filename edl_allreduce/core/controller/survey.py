"""Nodes and pods as the API server shows them → as the autoscaler sees them. Pure, over plain dicts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, Final

from edl_allreduce.core.autoscale.cluster import (
    Match,
    Node,
    Pod,
    Requirement,
    Role,
    Taint,
    Template,
    Toleration,
)

Object = Mapping[str, Any]

CPU: Final = "cpu"
ENDED: Final = ("Succeeded", "Failed")
_SUFFIXES: Final = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(1000),
    **{unit: Decimal(1000) ** power for power, unit in enumerate("MGTPE", start=2)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", start=1)},
}
MOST: Final = Decimal(10) ** 18


@lru_cache(maxsize=4096)
def amount(name: str, text: str | float) -> int:
    """A quantity of Kubernetes in whole units, rounded up: thousandths of cores, else bytes or devices.

    What cannot be read counts as nothing: the API server checked it, and one odd pod must not stop a plan.
    """
    words = str(text).strip()
    unit = words.lstrip("+-0123456789.")
    factor = _SUFFIXES.get(unit)
    digits = words[: len(words) - len(unit)] if factor is not None else words
    try:
        number = Decimal(digits) * (factor or 1) * (1000 if name == CPU else 1)
    except InvalidOperation:
        return 0
    if not number.is_finite() or number <= 0:
        return 0
    whole = min(number, MOST)
    return int(whole) + (whole != int(whole))


def amounts(found: Object | None) -> Counter[str]:
    return Counter({str(name): amount(str(name), text) for name, text in (found or {}).items()})


def requests_of(spec: Object) -> dict[str, int]:
    """What the scheduler counts: all containers together, or the largest of those that run before them."""
    total: Counter[str] = Counter()
    for container in spec.get("containers") or ():
        total += amounts(_asked(container))
    most: Counter[str] = Counter()
    beside: Counter[str] = Counter()
    for container in spec.get("initContainers") or ():
        asked = amounts(_asked(container))
        if container.get("restartPolicy") == "Always":  # it runs beside the others
            beside += asked
            most |= beside
        else:
            most |= beside + asked
    return dict((total + beside | most) + amounts(spec.get("overhead")))


def _asked(container: Object) -> Object:
    resources = container.get("resources") or {}
    return {**(resources.get("limits") or {}), **(resources.get("requests") or {})}


class Templates:
    """What pods ask of their node; pods that ask the same share one object."""

    def __init__(self) -> None:
        self._known: dict[str, Template] = {}

    def of(self, spec: Object) -> Template:
        affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
            "requiredDuringSchedulingIgnoredDuringExecution"
        ) or {}
        key = json.dumps(
            [
                sorted(requests_of(spec).items()),
                spec.get("tolerations") or [],
                spec.get("nodeSelector") or {},
                affinity,
            ],
            sort_keys=True,
            default=str,
        )
        if key not in self._known:
            self._known[key] = Template(
                requests_of(spec),
                tuple(_toleration(one) for one in spec.get("tolerations") or ()),
                dict(spec.get("nodeSelector") or {}),
                tuple(_term(term) for term in affinity.get("nodeSelectorTerms") or ()),
            )
        return self._known[key]


def _toleration(found: Object) -> Toleration:
    value = None if found.get("operator") == "Exists" else str(found.get("value") or "")
    return Toleration(str(found.get("key") or ""), value, str(found.get("effect") or ""))


def _term(found: Object) -> tuple[Requirement, ...]:
    labels = [_requirement(one) for one in found.get("matchExpressions") or ()]
    fields = [_requirement(one) for one in found.get("matchFields") or ()]  # there is only metadata.name
    return (*labels, *fields)


NAME_LABEL: Final = "metadata.name"
"""A node's own name among its labels, for affinity to one node."""


def _requirement(found: Object) -> Requirement:
    """What is not known, or compares a number with a word, holds nowhere."""
    key, operator = str(found.get("key")), found.get("operator")
    values = tuple(map(str, found.get("values") or ()))
    compares = operator in (Match.GREATER, Match.LESS)
    if operator not in list(Match) or (compares and not (values and values[0].lstrip("-").isdecimal())):
        return Requirement(key, Match.IN, ())
    return Requirement(key, Match(operator), values)


def node(found: Object) -> Node:
    """One that is not ready counts as cordoned: what runs there keeps its place until it is evicted.

    A node that is back soon, or a control plane that lost sight of all of them, moves nobody.
    """
    metadata, spec, status = found["metadata"], found.get("spec") or {}, found.get("status") or {}
    taints = [
        Taint(str(one["key"]), str(one.get("value") or ""), str(one["effect"]))
        for one in spec.get("taints") or ()
    ]
    return Node(
        name=metadata["name"],
        allocatable=dict(amounts(status.get("allocatable"))),
        labels={**(metadata.get("labels") or {}), NAME_LABEL: metadata["name"]},
        taints=tuple(taints),
        schedulable=condition(status, "Ready") == "True" and not spec.get("unschedulable"),
    )


def condition(status: Object, kind: str) -> str:
    for one in status.get("conditions") or ():
        if one.get("type") == kind:
            return str(one.get("status", ""))
    return ""


def time_of(text: object) -> float:
    """A time of the API server in seconds since 1970; 0 when there is none."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return 0.0


def pod(found: Object, templates: Templates, job: str = "", role: Role = Role.SERVICE) -> Pod | None:
    """None for one that is over, or that somebody holds back: it needs no room now."""
    metadata, spec, status = found["metadata"], found["spec"], found.get("status") or {}
    if status.get("phase") in ENDED:
        return None
    place = spec.get("nodeName") or None
    if place is None and role is Role.SERVICE:  # the scheduler preempts for it there: room is made already
        place = status.get("nominatedNodeName") or None
    if place is None and (spec.get("schedulingGates") or metadata.get("deletionTimestamp")):
        return None
    return Pod(
        name=f"{metadata['namespace']}/{metadata['name']}",
        asks=templates.of(spec),
        node=place,
        role=role,
        job=job,
        priority=int(spec.get("priority") or 0),
        terminating=bool(metadata.get("deletionTimestamp")),
        created=time_of(metadata.get("creationTimestamp")),
    )


def names(pods: Iterable[Object]) -> list[str]:
    return [one["metadata"]["name"] for one in pods]
