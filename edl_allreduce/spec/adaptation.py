"""The JSON of --cluster_spec_json: what a cluster wants its pods and services to look like."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from edl_allreduce.errors import UsageError

PIECES: Final = ("pod_spec", "service_spec", "master_pod_spec", "worker_pod_spec", "ps_pod_spec",
                 "master_spec", "worker_spec", "ps_spec")  # fmt: skip
"""ElasticDL's names. Those of parameter servers are read and not used."""
_KINDS: Final[Mapping[str, type]] = {
    "labels": dict,
    "annotations": dict,
    "affinity": dict,
    "tolerations": list,
    "env": list,
}
_EXAMPLE: Final = """such as '{"pod_spec": {"labels": {"team": "ml"}}}'"""


@dataclass(frozen=True)
class Piece:
    """What is added to the manifests of one kind of object. The values are Kubernetes' own."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    affinity: Mapping[str, Any] | None = None
    tolerations: tuple[Mapping[str, Any], ...] = ()
    env: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Adaptation:
    """All pieces by their names; one that was not given changes nothing."""

    pieces: Mapping[str, Piece] = field(default_factory=dict)

    def of(self, *names: str) -> tuple[Piece, ...]:
        """The pieces with these names that were given, in this order."""
        return tuple(self.pieces[name] for name in names if name in self.pieces)


def parse_adaptation(text: str) -> Adaptation:
    """Read --cluster_spec_json."""
    if not text:
        return Adaptation()
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not JSON: {error}") from error
    if not isinstance(given, dict):
        raise UsageError(f"expected a JSON object, {_EXAMPLE}")
    unknown = [name for name in given if name not in PIECES]
    if unknown:
        raise UsageError(f"unknown {', '.join(unknown)}; known are {', '.join(PIECES)}")
    return Adaptation({name: _piece(name, value) for name, value in given.items()})


def _piece(name: str, given: object) -> Piece:
    if not isinstance(given, dict):
        raise UsageError(f"{name}: expected a JSON object, {_EXAMPLE}")
    unknown = [f"{name}.{key}" for key in given if key not in _KINDS]
    if unknown:
        raise UsageError(f"unknown {', '.join(unknown)}; {name} has {', '.join(_KINDS)}")
    for key, value in given.items():
        if not isinstance(value, _KINDS[key]):
            raise UsageError(f"{name}.{key}: expected a JSON {_called(_KINDS[key])}")
        if isinstance(value, list) and not all(isinstance(each, dict) for each in value):
            raise UsageError(f"{name}.{key}: expected a JSON array of objects")
    for key in ("labels", "annotations"):
        if not all(isinstance(text, str) for text in given.get(key, {}).values()):
            raise UsageError(f'{name}.{key}: expected text for each name, as in {{"team": "ml"}}')
    if not all(isinstance(variable.get("name"), str) for variable in given.get("env", ())):
        raise UsageError(f"{name}.env: expected a name in each variable, as Kubernetes writes them")
    lists = {key: tuple(given[key]) for key in ("tolerations", "env") if key in given}
    return Piece(**{**given, **lists})


def _called(kind: type) -> str:
    return "object" if kind is dict else "array"
