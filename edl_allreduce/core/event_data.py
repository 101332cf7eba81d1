"""Events as JSON knows them, and back: what a job's history is made of."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Final, get_args

from edl_allreduce.core.events import Event
from edl_allreduce.core.protocol import NoteKind

_CLASSES: Final[Mapping[str, type[Any]]] = {made.__name__: made for made in get_args(Event)}
TYPE: Final = "type"


def to_data(event: Event) -> dict[str, Any]:
    """The facts as JSON knows them: the class under `type`, then its fields."""
    fields = {part.name: _plain(getattr(event, part.name)) for part in dataclasses.fields(event)}
    return {TYPE: type(event).__name__, **fields}


def from_data(facts: Mapping[str, Any]) -> Event | None:
    """The event again; None where another version wrote what this one does not know."""
    made = _CLASSES.get(str(facts.get(TYPE)))
    if made is None:
        return None
    try:
        fields = [part for part in dataclasses.fields(made) if part.name in facts]
        event: Event = made(**{part.name: _typed(str(part.type), facts[part.name]) for part in fields})
    except (TypeError, ValueError):
        return None
    return event


def _plain(value: Any) -> Any:
    match value:
        case tuple():
            return [_plain(part) for part in value]
        case Mapping():
            return {str(key): _plain(part) for key, part in value.items()}
        case str():
            return str(value)  # of an enum, too
        case float() if not math.isfinite(value):
            return str(value)  # JSON knows neither
    return value


def _typed(kind: str, value: Any) -> Any:
    match kind:
        case "int":
            return int(value)
        case "float":
            return float(value)
        case "str":
            return str(value)
        case "NoteKind":
            return NoteKind(value)
        case "bool":
            return bool(value)
        case "tuple[int, ...]":
            return tuple(int(part) for part in value)
        case "Mapping[str, float]":
            return {str(name): float(part) for name, part in dict(value).items()}
    raise TypeError(f"no field of an event has the type {kind}")
