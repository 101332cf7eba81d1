"""Values of an object from outside: the API server checked most of them, a file from elsewhere nobody."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from edl_allreduce.errors import UsageError
from edl_allreduce.outside import line
from edl_allreduce.spec.resource.names import Object

T = TypeVar("T")

_CALLED: Final[Mapping[type, str]] = {
    dict: "an object",
    list: "a list",
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}

LARGEST: Final[Mapping[type, float]] = {int: 2**63 - 1, float: sys.float_info.max}
"""Of numbers, so that every machine can hold them."""


def look(whole: Object, path: tuple[str, ...]) -> Any:
    """What stands there; None when nothing does."""
    value: Any = whole
    for depth, key in enumerate(path):
        value = checked(value, dict, path[:depth]).get(key)
        if value is None:
            return None
    return value


def put(whole: Object, path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        whole = whole.setdefault(key, {})
    whole[path[-1]] = value


def checked(value: Any, kind: type[T], path: tuple[str, ...]) -> T:
    """The value, if it is of this kind. JSON's numbers may be written without their fraction."""
    if kind in LARGEST and isinstance(value, int | float) and not isinstance(value, bool):
        # NaN is not at most anything.
        if abs(value) <= LARGEST[kind] and (kind is float or value == int(value)):
            return kind(value)  # type: ignore[call-arg]  # T is int or float
    elif type(value) is kind:
        return value
    where = ".".join(path if path[:1] == ("metadata",) else ("spec", *path))
    raise UsageError(f"{where}: expected {_CALLED[kind]}, got {line(repr(value), 80)}")


def text_map(whole: Object, path: tuple[str, ...]) -> dict[str, str] | None:
    """Names with texts; quantities may be plain numbers. None when it is not given."""
    found = look(whole, path)
    if found is None:
        return None
    result = {}
    for key, value in checked(found, dict, path).items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        result[str(key)] = str(value) if number else checked(value, str, (*path, str(key)))
    return result


def objects(whole: Object, path: tuple[str, ...]) -> list[Object]:
    """A list of objects; empty when it is not given."""
    found = look(whole, path)
    if found is None:
        return []
    return [checked(each, dict, path) for each in checked(found, list, path)]
