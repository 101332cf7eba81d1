"""What all workers keep in step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from edl_allreduce.errors import UsageError
from edl_allreduce.worker.keras.arrays import read_arrays

VALUES_BYTES = 64 * 1024
"""Room for plain values: they travel in one array of a size that all workers know beforehand."""

Value = bool | int | float | str | list[Any] | dict[str, Any] | None
"""What JSON can say."""


class SharedState:
    """Everything that all workers keep in step, as a flat list of arrays."""

    def __init__(self, state: Mapping[str, Any] | Sequence[Any], values: dict[str, Value]) -> None:
        items = dict(state) if isinstance(state, Mapping) else {str(i): item for i, item in enumerate(state)}
        self._variables = [
            (f"{name}/{getattr(v, 'path', v.name)}", v)
            for name, item in items.items()
            for v in _variables(name, item)
        ]
        if not self._variables:
            raise UsageError(
                "state is empty: name what all workers must keep in step, as in state=[model, optimizer]."
            )
        self._values = values

    def signature(self) -> str:
        """Which variables there are; workers that differ here cannot train together."""
        return ";".join(f"{tuple(v.shape)}{v.dtype}" for _, v in self._variables)

    def names(self) -> tuple[list[str], list[str]]:
        return [name for name, _ in self._variables], ["values"]

    def state(self) -> list[np.ndarray[Any, Any]]:
        text = msgspec.json.encode(self._values)
        if len(text) > VALUES_BYTES:
            raise UsageError(
                f"job.values takes {len(text)} bytes as JSON, {VALUES_BYTES} are allowed; keep arrays in "
                "variables and give those as state."
            )
        values = np.frombuffer(text.ljust(VALUES_BYTES), np.uint8)
        return [*read_arrays(v for _, v in self._variables), values]

    def restore(self, arrays: Sequence[np.ndarray[Any, Any]]) -> None:
        for (_, variable), array in zip(self._variables, arrays[:-1], strict=True):
            variable.assign(array)
        self._values.clear()
        self._values.update(msgspec.json.decode(arrays[-1].tobytes()))


def _variables(name: str, item: Any) -> list[Any]:
    """The variables of a model, an optimizer, a layer, a metric, a list, or a single variable."""
    if getattr(item, "built", True) is False:
        raise UsageError(
            f"state {name!r} ({type(item).__name__}) has no variables yet: call its build() before join, "
            "as in optimizer.build(model.trainable_variables)."
        )
    if isinstance(item, (list, tuple)):
        return [v for part in item for v in _variables(name, part)]
    found = getattr(item, "variables", None)
    if found is not None:
        return list(found)
    if hasattr(item, "assign"):
        return [item]
    raise UsageError(
        f"state {name!r} is a {type(item).__name__}; expected something with variables (model, optimizer, "
        "tf.Variable, or a list of them). Plain values belong in job.values."
    )
