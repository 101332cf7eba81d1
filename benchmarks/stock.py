"""Horovod as its makers published it, for the peers: ours is faster in places, so peers must not run on it.

    python -m benchmarks.stock        build it once (some minutes), print where it is

Horovod 0.28.1 does not compile against current TensorFlow, so the one patch that makes it compile is applied
and nothing else. It goes into a directory of its own that peers put in front of their path; the virtual
environment is not touched. Benchmarks use it when it is there, and say on what their peers ran.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

BUILD = Path(__file__).resolve().parents[1] / "third_party" / "horovod" / "build.py"
COMPILES = "0001"
"""The patch without which nothing is built."""


def _builder() -> Any:
    """The set-up's own builder, told to leave out every other patch."""
    spec = importlib.util.spec_from_file_location("stock_horovod_build", BUILD)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    everything = module.patches
    module.patches = lambda options: [path for path in everything(options) if path.name.startswith(COMPILES)]
    module.LOCAL_VERSION = "stock"
    return module


def directory() -> Path | None:
    """Where the stock Horovod is, if it was built for this Python and TensorFlow."""
    builder = _builder()
    home: Path = builder.cache_root() / "stock" / builder.target_for(Path(sys.executable)).key
    return home if (home / "horovod").is_dir() else None


def build() -> Path:
    """Build and unpack it, or find it."""
    there = directory()
    if there is not None:
        return there
    builder = _builder()
    python = Path(sys.executable)
    # Named before the build: the patch may change while it compiles.
    home: Path = builder.cache_root() / "stock" / builder.target_for(python).key
    wheel = builder.wheel_for(python)
    draft = home.with_name(f"{home.name}.tmp")
    command = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", str(draft), str(wheel)]
    subprocess.run([sys.executable, *command], check=True)
    return draft.replace(home)


if __name__ == "__main__":
    print(build())
