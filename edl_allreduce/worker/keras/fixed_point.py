"""Sums that do not depend on who adds what, or in which order: floats as whole numbers of a common unit.

Each tensor of a step has a *level*: a power of two that no element of any virtual rank's part reaches. In
units of `2**-BITS` of it, all parts are whole numbers whose sum fits into 32 bits, whatever their values are;
sums of whole numbers are exact. Levels come from the steps before. All ranks see the level that each part
needs together with the sum: where one did not fit, they add again in units that do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Levels = npt.NDArray[np.int32]
"""By tensor. A level is the exponent of a float32 as it is stored, plus `SHIFT`."""

NOTHING, ZERO, SHIFT = 0, 1, 2
"""Who has no part in a step needs no level, and whose elements are all zero any level."""
NOT_FINITE = 255 + SHIFT
LOWEST, HIGHEST = 32 + SHIFT, 254 + SHIFT
"""Units below 2**-122 would be no ordinary float32."""
BIAS = 126 + SHIFT
"""A level minus this is the exponent of the power of two that no element reaches."""

MARGIN = 2
"""Levels that a tensor may rise from one step to the next without adding again: a factor of four."""
COARSEST = 8
"""Levels that may be between what is used and what is needed: so many of the bits may be lost."""


def bits(virtual_ranks: int) -> int:
    """Of each part, besides its sign: the most that cannot overflow, if all are as large as can be."""
    return int(np.floor(np.log2((2**31 - 1) / virtual_ranks)))


def needed(codes: npt.NDArray[np.int32]) -> Levels:
    """The level of each tensor, from those of all parts: one row for each virtual rank."""
    highest: Levels = codes.max(axis=0)
    return highest


def fits(levels: Levels, needs: Levels) -> bool:
    """Whether sums in these units are exact, and fine enough. A tensor that holds NaN has no sum anyway."""
    counts = (needs > ZERO) & (needs < NOT_FINITE)
    too_high = needs > levels
    too_coarse = (levels - needs > COARSEST) & (levels > LOWEST)
    return not bool(np.any(counts & (too_high | too_coarse)))


def fitting(levels: Levels, needs: Levels) -> Levels:
    """Levels at which these parts can be added, whatever was before."""
    return _where_known(needs, np.clip(needs + MARGIN, LOWEST, HIGHEST), levels)


def following(levels: Levels, needs: Levels) -> Levels:
    """Levels for the next step: a peak is remembered for a while, so that it need not be added twice."""
    return _where_known(needs, np.clip(np.maximum(needs + MARGIN, levels - 1), LOWEST, HIGHEST), levels)


def units(levels: Levels, virtual_ranks: int) -> npt.NDArray[np.float32]:
    """What one means in each tensor's sum: powers of two, so that nothing is rounded by them."""
    exponents = np.clip(levels, LOWEST, HIGHEST) - BIAS - bits(virtual_ranks)
    values: npt.NDArray[np.float32] = np.ldexp(np.float32(1), exponents).astype(np.float32)
    return values


def _where_known(needs: Levels, those: npt.NDArray[Any], otherwise: Levels) -> Levels:
    return np.where((needs > ZERO) & (needs < NOT_FINITE), those, otherwise).astype(np.int32)
