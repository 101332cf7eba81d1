"""Which code AutoGraph goes through: the user's, and none of ours.

AutoGraph rewrites a function and everything that it calls, a logger included; left to itself it took most of
a worker's preparation. Our graphs are traced with `autograph=False` and call users' functions through
`converted`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """A user's function whose `if` and `for` may depend on tensors."""
    autograph = tf.__internal__.autograph
    made: Callable[..., Any] = autograph.tf_convert(function, autograph.control_status_ctx())
    return made
