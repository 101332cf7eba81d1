"""Volume strings such as 'claim_name=data,mount_path=/data;host_path=/mnt,mount_path=/scratch'."""

from __future__ import annotations

import dataclasses
from typing import Final

from edl_allreduce.errors import UsageError
from edl_allreduce.spec.words import did_you_mean

_KEYS: Final = ("claim_name", "host_path", "mount_path", "sub_path", "type")


@dataclasses.dataclass(frozen=True)
class Claim:
    """A PersistentVolumeClaim."""

    claim_name: str


@dataclasses.dataclass(frozen=True)
class HostPath:
    """A path on the node. `type` is Kubernetes' hostPath type; '' means no check."""

    path: str
    type: str = ""


@dataclasses.dataclass(frozen=True)
class Mount:
    """Where a volume appears in the container. `volume` is its position in `Volumes.sources`."""

    volume: int
    mount_path: str
    sub_path: str = ""


@dataclasses.dataclass(frozen=True)
class Volumes:
    """What a pod mounts. A claim or path that is used twice is one volume with two mounts."""

    sources: tuple[Claim | HostPath, ...] = ()
    mounts: tuple[Mount, ...] = ()


def parse_volumes(text: str) -> Volumes:
    """Read --volume."""
    sources: list[Claim | HostPath] = []
    mounts: list[Mount] = []
    for part in filter(None, (part.strip() for part in text.split(";"))):
        keys = _keys(part)
        source = _source(part, keys)
        if source not in sources:
            sources.append(source)
        mount = Mount(sources.index(source), keys["mount_path"], keys.get("sub_path", ""))
        if any(other.mount_path == mount.mount_path for other in mounts):
            raise UsageError(f"{part!r}: something is already mounted at {mount.mount_path}")
        mounts.append(mount)
    return Volumes(tuple(sources), tuple(mounts))


def _keys(part: str) -> dict[str, str]:
    result: dict[str, str] = {}
    for pair in filter(None, (pair.strip() for pair in part.split(","))):
        key, equals, value = (piece.strip() for piece in pair.partition("="))
        if not equals or not value:
            raise UsageError(f"{pair!r}: expected key=value, as in claim_name=data,mount_path=/data")
        if key not in _KEYS:
            raise UsageError(
                f"unknown key {key!r} in {part!r}; known are {', '.join(_KEYS)}.{did_you_mean(key, _KEYS)}"
            )
        if key in result:
            raise UsageError(f"{key!r} is given twice in {part!r}; separate volumes by ';'")
        result[key] = value
    return result


def _source(part: str, keys: dict[str, str]) -> Claim | HostPath:
    if ("claim_name" in keys) == ("host_path" in keys):
        raise UsageError(f"{part!r}: expected one of claim_name and host_path")
    if not keys.get("mount_path", "").startswith("/"):
        raise UsageError(f"{part!r}: expected mount_path=/an/absolute/path")
    if "claim_name" in keys:
        if "type" in keys:
            raise UsageError(f"{part!r}: type belongs to host_path, a claim has none")
        return Claim(keys["claim_name"])
    return HostPath(keys["host_path"], keys.get("type", ""))
