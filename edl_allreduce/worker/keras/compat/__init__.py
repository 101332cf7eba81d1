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

CURES = {
    "elasticai_api": "train with elastic.join or elastic.fit instead (docs/running/own-loop.md); a function "
    "train(dataset, elastic_controller) becomes a script of its own for --job_command",
    "elasticdl_preprocessing": "use the preprocessing layers of Keras 3 (keras.layers)",
    "elasticdl.python.data.reader": "RecordIO, CSV and others are read without it (docs/data.md); a reader "
    "of your own derives from AbstractDataReader of elasticdl.python.data.reader.data_reader",
    "elasticdl.python.elasticdl.feature_column": "feature columns are gone from Keras 3: use its "
    "preprocessing layers and keras.layers.Embedding, as model_zoo/census does",
    "elasticdl.python.elasticdl.layers": "there are no parameter servers here: use keras.layers.Embedding",
    "elasticdl.layers": "there are no parameter servers here: use keras.layers.Embedding",
}
"""What to do instead, by the beginning of a module's name."""

_PACKAGES = {name.rsplit(".", depth)[0] for name in OFFERED for depth in range(1, name.count(".") + 1)}


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in _PACKAGES:
            return ModuleSpec(fullname, _Renamed(""), is_package=True)
        if fullname in OFFERED:
            return ModuleSpec(fullname, _Renamed(OFFERED[fullname]))
        if fullname.startswith(FOREIGN):
            # Without its name: Python would take `from package import module` for a missing attribute.
            raise ModuleNotFoundError(_explained(fullname))
        return None


FOREIGN = ("elasticdl.", "elasticai_api", "elasticdl_preprocessing")


def _explained(fullname: str) -> str:
    cure = next((text for name, text in CURES.items() if fullname.startswith(name)), "")
    if cure:
        return f"{fullname} is ElasticDL's own and not offered here: {cure}"
    return (
        f"{fullname} is ElasticDL's own, and model files need only these of its modules here: "
        f"{', '.join(OFFERED)}; docs/models.md says what to use instead of others"
    )


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
