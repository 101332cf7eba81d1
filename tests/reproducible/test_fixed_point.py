"""Sums of whole numbers: exact in any order, never too large, and as precise as they say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_allreduce.worker.keras import fixed_point
from edl_allreduce.worker.keras.fixed_point import (
    COARSEST,
    HIGHEST,
    LOWEST,
    MARGIN,
    NOT_FINITE,
    SHIFT,
    ZERO,
    fits,
    fitting,
    following,
    units,
)


def level(tensor: np.ndarray) -> int:
    """As the traced step finds it."""
    highest = int((tensor.view(np.int32) & 0x7FFFFFFF).max())
    return ZERO if highest == 0 else (highest >> 23) + SHIFT


def levels(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


@settings(deadline=None, max_examples=60)
@given(
    count=st.integers(1, 64),
    exponent=st.integers(-80, 100),
    spread=st.integers(0, 30),
    seed=st.integers(0, 2**31),
    coarser=st.integers(0, COARSEST),
)
def test_no_sum_is_too_large_and_the_error_is_bounded(count, exponent, spread, seed, coarser):
    random = np.random.default_rng(seed)
    sizes = 2.0 ** (exponent - random.uniform(0, spread, (count, 7)))
    parts = (sizes * random.choice([-1, 1], (count, 7))).astype(np.float32)
    parts[:, 0] = np.nextafter(np.float32(2.0 ** (exponent + 1)), np.float32(0))  # all as large as can be
    need = levels(max(level(part) for part in parts))
    used = np.clip(need + coarser, LOWEST, HIGHEST).astype(np.int32)
    assert fits(used, need)
    unit = float(units(used, count)[0])
    whole = np.rint(parts.astype(np.float64) / unit)
    assert (np.abs(whole) <= 2 ** fixed_point.bits(count)).all()
    assert abs(whole.sum(axis=0)).max() < 2**31, "overflow is impossible"
    error = np.abs(whole.sum(axis=0) * unit - parts.astype(np.float64).sum(axis=0)).max()
    # Half a unit for each part, and a unit is a part of the largest element that the bits give.
    largest = np.abs(parts).max()
    assert error <= count * largest * 2.0 ** (coarser - fixed_point.bits(count)), (error, largest)


def test_levels_rise_and_fall_with_what_is_needed():
    need = levels(100, ZERO, NOT_FINITE)
    assert not fits(levels(0, 0, 0), need), "nothing is known before the first step"
    used = fitting(levels(0, 7, 8), need)
    assert used.tolist() == [100 + MARGIN, 7, 8]
    assert fits(used, need), "what is zero or no number needs no level"
    assert fits(used, levels(100 + MARGIN, ZERO, ZERO))
    assert not fits(used, levels(100 + MARGIN + 1, ZERO, ZERO)), "too large"
    assert not fits(used, levels(100 + MARGIN - COARSEST - 1, ZERO, ZERO)), "too coarse"
    assert following(levels(110), levels(100)).tolist() == [109], "a peak is forgotten slowly"
    assert following(levels(102), levels(105)).tolist() == [107]


@pytest.mark.parametrize("need", [SHIFT, LOWEST, HIGHEST])
def test_the_smallest_and_the_largest_floats_have_units(need):
    used = fitting(levels(0), levels(need))
    assert fits(used, levels(need)), "so that a step is added twice at most"
    unit = units(used, 12)
    assert np.isfinite(unit).all() and np.isfinite(1 / unit).all() and (unit > 0).all()
