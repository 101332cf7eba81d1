"""What a cluster is, in one file of its run directory, so that any later command finds it as it was left."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path

from kubelab.network import Cut


class Kind(Enum):
    """What a cluster is made of."""

    REAL = "real nodes"
    HOLLOW = "control plane only"


@dataclass(frozen=True)
class NodeSpec:
    """A node as it was asked for."""

    number: int
    cpu: float | None = None
    """Allocatable CPUs; None: those of this machine."""
    memory_mib: int | None = None
    """Allocatable memory; None: that of this machine."""


@dataclass
class State:
    """Everything about a cluster that is not in a process or in the API server."""

    kind: Kind
    host: str
    """Where the API server listens; an address of the cluster's network when there is one."""
    api_port: int
    etcd_port: int
    peer_port: int
    server: str
    """The API server's URL for people and tests."""
    token: str
    node_grace: int
    """Seconds without a sign of life after which a node is NotReady."""
    hollow: bool = False
    """Whether KWOK runs."""
    ready: bool = False
    """False while it is being started: a cluster left in this state is taken down by the next command."""
    nodes: dict[str, NodeSpec] = field(default_factory=dict)
    cuts: list[Cut] = field(default_factory=list)

    def save(self, run: Path) -> None:
        """Write it, whole or not at all."""
        scratch = run / "cluster.json.new"
        scratch.touch(mode=0o600)  # it holds the token
        scratch.write_text(json.dumps({**asdict(self), "kind": self.kind.value}, indent=1))
        scratch.replace(run / "cluster.json")

    @classmethod
    def load(cls, run: Path) -> State | None:
        """Read it; None when there is no such cluster."""
        try:
            content = json.loads((run / "cluster.json").read_text())
        except FileNotFoundError:
            return None
        content["kind"] = Kind(content["kind"])
        content["nodes"] = {name: NodeSpec(**spec) for name, spec in content["nodes"].items()}
        content["cuts"] = [Cut(**cut) for cut in content["cuts"]]
        return cls(**content)
