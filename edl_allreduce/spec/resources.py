"""Resource strings such as 'cpu=2,memory=4096Mi,gpu=1'."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from edl_allreduce.errors import UsageError
from edl_allreduce.spec.words import did_you_mean

# Digits of a number that a machine could have; Python refuses to read thousands of them.
_CPU: Final = re.compile(r"\d{1,18}(\.\d{1,18})?|[1-9]\d{0,17}m")
_BYTES: Final = re.compile(r"[1-9]\d{0,17}([EPTGMK]i?)")
_COUNT: Final = re.compile(r"0|[1-9]\d{0,17}")
_DEVICE: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")

_CPU_HINT: Final = "a number of cores such as 0.5 or 500m"
_BYTES_HINT: Final = "an amount without a leading 0 and with a unit, such as 4096Mi or 4G"

# Our name -> Kubernetes' name. `disk` was always meant as space on the node's disk.
_NAMES: Final = {
    "cpu": "cpu",
    "memory": "memory",
    "disk": "ephemeral-storage",
    "ephemeral-storage": "ephemeral-storage",
    "gpu": "nvidia.com/gpu",
}

_UNITS: Final = {
    **{unit: 1000**power for power, unit in enumerate("KMGTPE", start=1)},
    **{f"{unit}i": 1024**power for power, unit in enumerate("KMGTPE", start=1)},
}


def parse_resources(text: str) -> dict[str, str]:
    """Kubernetes' resource names and quantities, in the order given."""
    result: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        given, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value:
            raise UsageError(f"{part!r}: expected name=amount pairs separated by ',', as in cpu=1,memory=4Gi")
        name = _name(given)
        _check(given, name, value)
        if name in result:
            raise UsageError(f"{part!r}: {name} is given twice")
        result[name] = value
    return result


def amount(value: str) -> Fraction:
    """The number behind a quantity that `parse_resources` accepted, in cores, bytes or devices."""
    if value.endswith("m"):
        return Fraction(value[:-1]) / 1000
    digits = value.rstrip("EPTGMKi")
    unit = value[len(digits) :]
    return Fraction(digits) * (_UNITS[unit] if unit else 1)


def effective_limit(wanted: Mapping[str, str], limit: Mapping[str, str]) -> dict[str, str]:
    """The limit of a pod: what --*_resource_limit says, and the request when it says nothing.

    Kubernetes wants a limit for every device, equal to the request, so devices are taken over.
    """
    allowed = dict(limit or wanted)
    for name, value in wanted.items():
        if _is_device(name):
            allowed.setdefault(name, value)
    for name, value in allowed.items():
        if name not in wanted:
            continue
        if amount(wanted[name]) > amount(value):
            raise UsageError(f"the limit {name}={value} is less than the request {name}={wanted[name]}")
        if _is_device(name) and amount(wanted[name]) != amount(value):
            raise UsageError(f"request and limit of {name} differ: devices are not shared, so both are equal")
    return allowed


def _is_device(name: str) -> bool:
    return "/" in name


def _name(given: str) -> str:
    if given in _NAMES:
        return _NAMES[given]
    if _DEVICE.fullmatch(given):
        return given
    raise UsageError(
        f"unknown resource {given!r}; known are {', '.join(_NAMES)} and devices such as amd.com/gpu."
        + did_you_mean(given.lower(), _NAMES)
    )


def _check(given: str, name: str, value: str) -> None:
    if name == "cpu":
        pattern, hint = _CPU, _CPU_HINT
    elif name in ("memory", "ephemeral-storage"):
        pattern, hint = _BYTES, _BYTES_HINT
    else:
        pattern, hint = _COUNT, "a whole number of devices"
    if not pattern.fullmatch(value):
        raise UsageError(f"{given}={value}: expected {hint}")
