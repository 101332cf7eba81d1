"""Places where a test may make something happen. Without a test, a place costs one comparison."""

from __future__ import annotations

import importlib
import os
from typing import Any, Final, Literal

from edl_allreduce.contract import FAULTS

Point = Literal[
    "prepare", "ready", "init", "sync", "compute", "reduce", "applied", "evaluate", "checkpoint", "export",
    "task",
]  # fmt: skip

_UNDER_TEST: Final = bool(os.environ.get(FAULTS))


def reach(point: Point, **coordinates: int) -> None:
    """A place where a fault may happen."""
    if _UNDER_TEST:
        # By name: what ships for tests imports the product, and nothing of the product imports it.
        importlib.import_module("edl_allreduce.testing.faults").happen(point, coordinates)


def lend(**things: Any) -> None:
    """What a fault may take hold of in this process, such as the weights that it spoils."""
    if _UNDER_TEST:
        importlib.import_module("edl_allreduce.testing.faults").lent.update(things)
