"""What a cluster has and what pods ask of it: nodes, pods, and the room that is left on each node.

Amounts are whole numbers in a unit that nodes and pods share: thousandths of a core for `cpu`, bytes for
`memory`, devices for everything else. A name that a node does not list is not there at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Final

PODS: Final = "pods"
"""How many pods a node takes. Every pod asks for one, where nodes count them."""


@dataclass(frozen=True)
class Taint:
    """What keeps pods away from a node unless they tolerate it."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True)
class Toleration:
    """Which taints a pod does not mind. An empty key or effect stands for all of them."""

    key: str = ""
    value: str | None = None
    """None: any value (operator Exists)."""
    effect: str = ""

    def covers(self, taint: Taint) -> bool:
        return (
            self.key in ("", taint.key)
            and self.value in (None, taint.value)
            and self.effect in ("", taint.effect)
        )


class Match(StrEnum):
    """How a node's label is compared, in Kubernetes' words."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GREATER = "Gt"
    LESS = "Lt"


@dataclass(frozen=True)
class Requirement:
    """One condition on a node's labels."""

    key: str
    match: Match
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.match:
            case Match.IN:
                return value in self.values
            case Match.NOT_IN:
                return value not in self.values
            case Match.EXISTS:
                return value is not None
            case Match.DOES_NOT_EXIST:
                return value is None
            case Match.GREATER:
                return value is not None and int(value) > int(self.values[0])
            case Match.LESS:
                return value is not None and int(value) < int(self.values[0])


@dataclass(frozen=True, eq=False)
class Template:
    """What a pod asks of its node. Pods of one kind share one object."""

    requests: Mapping[str, int]
    tolerations: tuple[Toleration, ...] = ()
    selector: Mapping[str, str] = field(default_factory=dict)
    affinity: tuple[tuple[Requirement, ...], ...] = ()
    """Required node affinity: one of these terms must hold, with all its requirements."""

    def admits(self, labels: Mapping[str, str], taints: Iterable[Taint]) -> bool:
        """Whether a node with these labels and taints may take it, room left aside."""
        return (
            all(labels.get(key) == value for key, value in self.selector.items())
            and (not self.affinity or any(all(one.holds(labels) for one in term) for term in self.affinity))
            and all(
                taint.effect == "PreferNoSchedule" or any(one.covers(taint) for one in self.tolerations)
                for taint in taints
            )
        )

    def label_keys(self) -> set[str]:
        return {*self.selector, *(one.key for term in self.affinity for one in term)}


@dataclass(frozen=True)
class Node:
    """A machine of the cluster."""

    name: str
    allocatable: Mapping[str, int]
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    schedulable: bool = True
    """False when it is cordoned: what runs there may stay, nothing new comes."""
    ready: bool = True
    """False when it is lost: what ran there has to find another place."""


@dataclass(frozen=True)
class Cluster:
    """Its nodes, each with another name."""

    nodes: Sequence[Node]


class Role(Enum):
    SERVICE = "service"
    """Anything that is not ours: it is never moved, and never waits for what is above a job's minimum."""
    MASTER = "master"
    WORKER = "worker"


@dataclass(frozen=True)
class Pod:
    """A pod that has not ended."""

    name: str
    """Another one for each; in a cluster with namespaces, NAMESPACE/NAME."""
    asks: Template
    node: str | None = None
    """None while it is Pending. Pods that somebody holds back (scheduling gates) do not belong here."""
    role: Role = Role.SERVICE
    job: str = ""
    """Of masters and workers."""
    priority: int = 0
    """The value of its PriorityClass."""
    terminating: bool = False
    """It holds its room until it is gone, and is nobody's worker any more."""
    created: float = 0.0


@dataclass(frozen=True)
class Ask:
    """A template in the terms of one `Room`."""

    amounts: tuple[int, ...]
    profiles: frozenset[int]
    """Kinds of nodes that admit it."""
    devices_spared: tuple[int, ...]
    """Positions of devices that it does not ask for, and so should leave to those who do."""


class Room:
    """What is free on each node. Nodes that differ in nothing are searched as one."""

    def __init__(self, nodes: Sequence[Node], templates: Iterable[Template]) -> None:
        known = list(templates)
        names = {name for node in nodes for name in node.allocatable}
        names.update(name for template in known for name in template.requests)
        self.names: tuple[str, ...] = tuple(sorted(names))
        self._keys = sorted({key for template in known for key in template.label_keys()})
        self._profiles: dict[tuple[object, ...], int] = {}
        self._examples: list[Node] = []
        self._profile: dict[str, int] = {}
        self._free: dict[str, tuple[int, ...]] = {}
        self._alike: dict[tuple[int, tuple[int, ...]], dict[str, None]] = {}
        self._asks: dict[Template, Ask] = {}
        self._found: dict[Ask, str | None] = {}
        self.total = [0] * len(self.names)
        self.used = [0] * len(self.names)
        for node in nodes:
            if node.ready:
                self._add(node)
        self._largest = [
            max((free[at] for free in self._free.values()), default=0) or 1 for at in range(len(self.names))
        ]

    def _add(self, node: Node) -> None:
        kind = (node.schedulable, tuple(node.labels.get(key) for key in self._keys), node.taints)
        if kind not in self._profiles:
            self._profiles[kind] = len(self._examples)
            self._examples.append(node)
        profile = self._profiles[kind]
        free = tuple(node.allocatable.get(name, 0) for name in self.names)
        self._profile[node.name] = profile
        self._free[node.name] = free
        self._alike.setdefault((profile, free), {})[node.name] = None
        if node.schedulable:
            self.total = [sum(pair) for pair in zip(self.total, free, strict=True)]

    def ask(self, template: Template) -> Ask:
        found = self._asks.get(template)
        if found is None:
            amounts = tuple(template.requests.get(name, 1 if name == PODS else 0) for name in self.names)
            profiles = frozenset(
                number
                for number, node in enumerate(self._examples)
                if node.schedulable and template.admits(node.labels, node.taints)
            )
            spared = tuple(
                at for at, name in enumerate(self.names) if "/" in name and not template.requests.get(name)
            )
            found = self._asks[template] = Ask(amounts, profiles, spared)
        return found

    def knows(self, node: str | None) -> bool:
        """Whether this node is there and ready."""
        return node in self._free

    def admits(self, node: str, ask: Ask) -> bool:
        return self._profile[node] in ask.profiles

    def fits(self, node: str, ask: Ask, *besides: Ask) -> bool:
        """Whether it would fit there once `besides` had left."""
        left = list(self._free[node])
        for other in besides:
            left = [have + gone for have, gone in zip(left, other.amounts, strict=True)]
        return self.admits(node, ask) and all(
            not want or want <= have for want, have in zip(ask.amounts, left, strict=True)
        )

    def has_room(self, node: str, ask: Ask) -> bool:
        """Whether one that is there already could stay, also on a node that takes nothing new."""
        return all(not want or want <= have for want, have in zip(ask.amounts, self._free[node], strict=True))

    def find(self, ask: Ask) -> str | None:
        """The node that it fills best, so that large gaps are left for what is large."""
        last = self._found.get(ask)
        if last is not None and self.fits(last, ask):
            return last  # where the last of its kind went: fill that node before the next
        best, best_score = None, float("inf")
        for (profile, free), nodes in self._alike.items():
            if profile not in ask.profiles:
                continue
            score = 0.0
            for at, want in enumerate(ask.amounts):
                left = free[at] - want
                if left < 0 and want:
                    break
                if want:
                    score += left / self._largest[at]
            else:
                score += sum(10.0 * free[at] / self._largest[at] for at in ask.devices_spared)
                if score < best_score:
                    best, best_score = next(iter(nodes)), score
        self._found[ask] = best
        return best

    def take(self, node: str, ask: Ask) -> None:
        self._change(node, ask, -1)

    def give(self, node: str, ask: Ask) -> None:
        self._change(node, ask, 1)

    def _change(self, node: str, ask: Ask, sign: int) -> None:
        profile, free = self._profile[node], self._free[node]
        alike = self._alike[profile, free]
        del alike[node]
        if not alike:
            del self._alike[profile, free]
        left = tuple(have + sign * want for have, want in zip(free, ask.amounts, strict=True))
        self._free[node] = left
        self._alike.setdefault((profile, left), {})[node] = None
        if self._examples[profile].schedulable:
            for at, want in enumerate(ask.amounts):
                self.used[at] -= sign * want

    def within(self, ask: Ask, load: float) -> bool:
        """Whether the cluster as a whole stays at or below this share of each resource that is asked for."""
        return all(
            not want or self.used[at] + want <= load * self.total[at] + 1e-9
            for at, want in enumerate(ask.amounts)
        )

    def overloaded(self, load: float) -> list[int]:
        """Positions of the resources of which more than this share is spoken for."""
        return [at for at, total in enumerate(self.total) if self.used[at] > load * total + 1e-9]

    def load(self) -> dict[str, float]:
        """The share of each resource that is spoken for."""
        return {name: self.used[at] / self.total[at] for at, name in enumerate(self.names) if self.total[at]}

    def free(self, node: str) -> dict[str, int]:
        return dict(zip(self.names, self._free[node], strict=True))
