"""Names of objects and of what holds them. `pathlib` would make one slash of two, so they have a type."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from edl_allreduce.errors import UsageError

EXTRAS: Final = {"s3": "s3", "gs": "gcs", "az": "azure", "hdfs": "hdfs", "memory": ""}
"""Schemes that are known, and the extra of this package that brings the library for each."""

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_FILE: Final = "file"


@dataclass(frozen=True, order=True)
class Url:
    """`s3://bucket/folder/name`: an object, or whatever begins with that name and a slash."""

    scheme: str
    path: str
    """From the bucket on, without a slash at its end."""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.path}"

    def __truediv__(self, name: str) -> Url:
        return Url(self.scheme, f"{self.path}/{name}")

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.name).suffix

    @property
    def stem(self) -> str:
        return PurePosixPath(self.name).stem

    @property
    def parent(self) -> Url:
        return Url(self.scheme, self.path.rpartition("/")[0])

    @property
    def bucket(self) -> str:
        return self.path.lstrip("/").partition("/")[0]


@dataclass(frozen=True, order=True)
class Object(Url):
    """An object as it was when somebody looked."""

    size: int
    version: str
    """Changes with its content: its ETag, its generation, or when it was written."""

    @classmethod
    def at(cls, url: Url, size: int, version: str) -> Object:
        return cls(url.scheme, url.path, size, version)

    @property
    def url(self) -> Url:
        return Url(self.scheme, self.path)


Place = Path | Url
"""Where something is: on a file system, or in object storage."""


def is_url(text: str) -> bool:
    """Whether it names object storage; `file://` does not."""
    found = _SCHEME.match(text)
    return found is not None and found[1].lower() != _FILE


def place(text: str) -> Place:
    """What a user wrote after a flag that takes a path or a URL."""
    found = _SCHEME.match(text)
    if found is None:
        return Path(text)
    scheme, rest = found[1].lower(), text[found.end() :]
    if scheme == _FILE:
        return Path(rest)
    if scheme not in EXTRAS:
        known = ", ".join(f"{name}://" for name in EXTRAS if EXTRAS[name])
        raise UsageError(f"{text}: {scheme}:// is not known; expected a path, or a URL of {known}")
    if not rest.strip("/"):
        raise UsageError(f"{text}: names no bucket; expected {scheme}://BUCKET/NAME")
    return Url(scheme, rest.rstrip("/"))
