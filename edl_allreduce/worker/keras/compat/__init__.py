"""Names that model files written for ElasticDL import, offered while there is no such package.

A finder at the end of `sys.meta_path` answers for `elasticdl.…`; an installed package of that name wins.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

OFFERED = {
    "elasticdl.python.common.constants": "edl_allreduce.worker.keras.compat.constants",
    "elasticdl.python.common.log_utils": "edl_allreduce.worker.keras.compat.log_utils",
    "elasticdl.python.data.reader.data_reader": "edl_allreduce.worker.keras.compat.data_reader",
    "elasticdl.python.elasticdl.callbacks": "edl_allreduce.worker.keras.callbacks",
    "elasticdl.python.worker.prediction_outputs_processor": "edl_allreduce.worker.keras.compat.prediction",
}

_PACKAGES = {name.rsplit(".", depth)[0] for name in OFFERED for depth in range(1, name.count(".") + 1)}


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in _PACKAGES:
            return ModuleSpec(fullname, _Renamed(""), is_package=True)
        if fullname in OFFERED:
            return ModuleSpec(fullname, _Renamed(OFFERED[fullname]))
        if fullname.startswith("elasticdl."):
            raise ModuleNotFoundError(
                f"{fullname} belongs to ElasticDL's package, which is not installed; of its modules these "
                f"are offered here: {', '.join(OFFERED)}",
                name=fullname,
            )
        return None


class _Renamed(Loader):
    """A module that offers what another one does."""

    def __init__(self, target: str) -> None:
        self._target = target

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        if self._target:
            offered = importlib.import_module(self._target)
            vars(module).update({n: v for n, v in vars(offered).items() if not n.startswith("_")})


def install() -> None:
    """From now on model files can be imported."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
