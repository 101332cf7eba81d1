"""Model files are imported as they were when the job began (`cluster.pinned`).

Their `__file__` stays the original path, so that data next to a model file is found; `inspect`, AutoGraph and
tracebacks see the text that really runs.
"""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

from edl_allreduce.cluster import pinned
from edl_allreduce.contract import PINNED_FILES

Texts = Mapping[Path, bytes]
"""What each path held when the job began."""


class PinnedLoader(SourceFileLoader):
    """Runs a kept text under the original path, without any cache of bytecode."""

    def __init__(self, fullname: str, path: str, text: bytes) -> None:
        super().__init__(fullname, path)
        self._text = text

    def get_data(self, path: str) -> bytes:
        return self._text if path == self.path else super().get_data(path)

    def get_code(self, fullname: str) -> CodeType | None:
        return self.source_to_code(self._text, self.path)

    def exec_module(self, module: ModuleType) -> None:
        lines = self.get_source(self.name) or ""
        # Without a time of its last change an entry is never compared with the file on disk.
        linecache.cache[self.path] = (len(self._text), None, lines.splitlines(keepends=True), self.path)
        super().exec_module(module)


class PinnedFinder(MetaPathFinder):
    """Finds what `sys.path` would find, and gives the kept text for files that were kept."""

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._names = {path.parent.name if path.stem == "__init__" else path.stem for path in texts}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        name = fullname.rpartition(".")[2]
        if name not in self._names:
            return None
        for entry in sys.path if path is None else path:
            folder = Path(entry).absolute()
            for file in (folder / name / "__init__.py", folder / f"{name}.py"):
                if file in self._texts:
                    return self.spec(fullname, file)
            other = PathFinder.find_spec(fullname, [entry])
            if other is not None and other.loader is not None:  # a mere directory gives way to a file
                return None  # something else of that name comes first
        return None

    def spec(self, fullname: str, file: Path) -> ModuleSpec | None:
        """None for a file that was not kept."""
        if file not in self._texts:
            return None
        loader = PinnedLoader(fullname, str(file), self._texts[file])
        package = [str(file.parent)] if file.name == "__init__.py" else None
        return spec_from_file_location(fullname, file, loader=loader, submodule_search_locations=package)


def install(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Import kept files from now on; gives those that changed on disk since the job began."""
    manifest = environ.get(PINNED_FILES, "")
    if not manifest or finder() is not None:
        return []
    kept = pinned.read_manifest(Path(manifest))
    sys.meta_path.insert(0, PinnedFinder({path: text for path, (text, _) in kept.items()}))
    return [_shown(path) for path, (_, digest) in kept.items() if _changed(path, digest)]


def finder() -> PinnedFinder | None:
    return next((found for found in sys.meta_path if isinstance(found, PinnedFinder)), None)


def _changed(path: Path, digest: str) -> bool:
    try:
        return pinned.digest(path.read_bytes()) != digest
    except OSError:
        return True


def _shown(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
