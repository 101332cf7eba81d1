"""State in pieces: what is packed on one side comes out on the other, and large arrays are not copied."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edl_allreduce.worker.ring import parcels as module
from edl_allreduce.worker.ring.parcels import pack, parcels, place_for, unpack


def arrays() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    shapes = [(3,), (), (40, 5), (0,), (7,), (300,), (1,)]
    return [random.normal(size=shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("alone", [1, 100, 800, math.inf])
@pytest.mark.parametrize("chunk", [64, 1000, 10**6])
def test_all_of_it_arrives(alone, chunk, monkeypatch):
    monkeypatch.setattr(module, "CHUNK_BYTES", chunk)
    sent, received = arrays(), [np.empty_like(array) for array in arrays()]
    for ours, theirs in zip(parcels(sent, alone), parcels(received, alone), strict=True):
        place = place_for(theirs)
        place[:] = pack(ours)
        unpack(place, theirs)
        assert 0 < place.size <= chunk
    for expected, got in zip(sent, received, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_large_arrays_are_sent_from_where_they_are_and_small_ones_together():
    sent = arrays()
    made = list(parcels(sent, alone=800))
    assert [len(parcel) for parcel in made] == [2, 1, 1, 1, 1]
    assert np.shares_memory(pack(made[1]), sent[2]) and np.shares_memory(place_for(made[3]), sent[5])
    assert not np.shares_memory(pack(made[0]), sent[0])
    assert [len(parcel) for parcel in parcels(sent)] == [6], "in as few pieces as it goes"
