"""Values of an object from outside: the API server checked most of them, a file from elsewhere nobody."""

from __future__ import annotations

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
    right = isinstance(value, bool) if kind is bool else isinstance(value, kind)
    if isinstance(value, bool) and kind is not bool:
        right = False
    elif kind is float and isinstance(value, int):
        return float(value)  # type: ignore[return-value]  # T is float
    elif kind is int and isinstance(value, float) and value.is_integer():
        return int(value)  # type: ignore[return-value]  # T is int
    if not right:
        where = ".".join(path if path[:1] == ("metadata",) else ("spec", *path))
        raise UsageError(f"{where}: expected {_CALLED[kind]}, got {line(repr(value), 80)}")
    return value  # type: ignore[no-any-return]  # its type was just checked


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
