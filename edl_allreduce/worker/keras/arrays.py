"""Variables as arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf


def read_arrays(variables: Iterable[Any]) -> list[np.ndarray[Any, Any]]:
    """Their values now, not to be written to. Nothing is copied: an update of a variable whose memory
    somebody still reads gives it new memory, so only what is kept costs a copy, and in the next update."""
    return [np.asarray(tf.convert_to_tensor(variable)) for variable in variables]
