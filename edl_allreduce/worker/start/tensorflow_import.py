"""TensorFlow's import: most of a worker's start."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

NOT_THERE: Any = None
"""What makes `import` say that there is no such module."""

WITHOUT_TILES: Final = "AVX512_CORE_FP16"
"""The most that oneDNN then uses: everything but the tile registers (AMX)."""


def avoid_tiles(environ: MutableMapping[str, str], processor: Path = Path("/proc/cpuinfo")) -> None:
    """Keep TensorFlow's bfloat16 away from tile registers, on processors that have them.

    The oneDNN of TensorFlow 2.21 uses them in a thread that did not configure them: a product of bfloat16
    matrices ends the process with SIGILL. Who names an instruction set in ONEDNN_MAX_CPU_ISA gets that.
    """
    with suppress(OSError):
        if "amx_tile" in processor.read_text():
            environ.setdefault("ONEDNN_MAX_CPU_ISA", WITHOUT_TILES)


def import_tensorflow() -> None:
    """Import TensorFlow and Keras in about two thirds of the usual time.

    The garbage collector would look at half a million new objects again and again, while every module is kept
    for good; later it need not look at them either. Keras imports scikit-learn, where that is installed, only
    to wrap models for it, which nobody asks of a worker. A model file may still import it.
    """
    avoid_tiles(os.environ)
    hidden = "sklearn" not in sys.modules
    if hidden:
        sys.modules["sklearn"] = NOT_THERE
    gc.disable()
    try:
        import keras  # noqa: F401  for its side effects
        import tensorflow  # noqa: F401  for its side effects
    finally:
        gc.freeze()
        gc.enable()
        if hidden:
            del sys.modules["sklearn"]
