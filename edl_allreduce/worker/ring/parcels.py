"""State in pieces: small variables share one, a large model is never packed whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

CHUNK_BYTES = 64 * 1024 * 1024
"""State is sent in parcels of this size."""


def parcels(arrays: Iterable[np.ndarray[Any, Any]]) -> Iterator[list[Bytes]]:
    """The bytes of all arrays as views, in parcels of at most CHUNK_BYTES."""
    parcel: list[Bytes] = []
    room = CHUNK_BYTES
    for array in arrays:
        raw = array.reshape(-1).view(np.uint8)
        while raw.size:
            part, raw = raw[:room], raw[room:]
            parcel.append(part)
            room -= part.size
            if room == 0:
                yield parcel
                parcel, room = [], CHUNK_BYTES
    if parcel:
        yield parcel


def unpack(packed: Bytes, places: list[Bytes]) -> None:
    """Put the bytes of one parcel where they belong."""
    ends = np.cumsum([place.size for place in places])
    for place, part in zip(places, np.split(packed, ends[:-1]), strict=True):
        place[:] = part
