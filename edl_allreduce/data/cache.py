"""The most recently used parts of a data set, up to a total weight in bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, Protocol, TypeVar


class Weighted(Protocol):
    @property
    def weight(self) -> int: ...


T = TypeVar("T", bound=Weighted)

CACHE_BYTES = 512 << 20
"""What one source may keep in memory."""


class Cache(Generic[T]):
    """Used by several threads; two that miss the same part at once both load it, which does no harm."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._weight = 0
        self._lock = threading.Lock()
        self._parts: OrderedDict[tuple[int, int], T] = OrderedDict()

    @property
    def weight(self) -> int:
        return self._weight

    def get(self, key: tuple[int, int]) -> T | None:
        with self._lock:
            part = self._parts.get(key)
            if part is not None:
                self._parts.move_to_end(key)
            return part

    def put(self, key: tuple[int, int], part: T) -> None:
        with self._lock:
            if key in self._parts:
                return
            self._parts[key] = part
            self._weight += part.weight
            while self._weight > self._limit and len(self._parts) > 1:
                self._weight -= self._parts.popitem(last=False)[1].weight

    def clear(self) -> None:
        with self._lock:
            self._parts.clear()
            self._weight = 0
