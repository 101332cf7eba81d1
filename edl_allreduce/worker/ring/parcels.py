"""State in pieces: small variables share one, a large model is never packed whole."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

CHUNK_BYTES = 64 * 1024 * 1024
"""State is sent in parcels of this size."""
LARGE = 1024 * 1024
"""An array of so many bytes is sent from where it is: to copy it takes longer than to send it alone."""


def parcels(arrays: Iterable[np.ndarray[Any, Any]], alone: float = math.inf) -> Iterator[list[Bytes]]:
    """The bytes of all arrays as views, in parcels of at most CHUNK_BYTES; arrays of `alone` bytes or more
    share none with others."""
    parcel: list[Bytes] = []
    room = CHUNK_BYTES
    for array in arrays:
        raw = array.reshape(-1).view(np.uint8)
        if raw.size >= alone:
            if parcel:
                yield parcel
            parcel, room = [], CHUNK_BYTES
            yield from ([raw[start : start + CHUNK_BYTES]] for start in range(0, raw.size, CHUNK_BYTES))
            continue
        while raw.size:
            part, raw = raw[:room], raw[room:]
            parcel.append(part)
            room -= part.size
            if room == 0:
                yield parcel
                parcel, room = [], CHUNK_BYTES
    if parcel:
        yield parcel


def pack(parcel: list[Bytes]) -> Bytes:
    """In one piece; without a copy where it is one."""
    return parcel[0] if len(parcel) == 1 else np.concatenate(parcel)


def place_for(parcel: list[Bytes]) -> Bytes:
    """Where such a parcel can be received in one piece."""
    return parcel[0] if len(parcel) == 1 else np.empty(sum(part.size for part in parcel), np.uint8)


def unpack(packed: Bytes, places: list[Bytes]) -> None:
    """Put the bytes of one parcel where they belong, if they are not there."""
    if len(places) == 1 and packed is places[0]:
        return
    ends = np.cumsum([place.size for place in places])
    for place, part in zip(places, np.split(packed, ends[:-1]), strict=True):
        place[:] = part
