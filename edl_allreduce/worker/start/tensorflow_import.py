"""TensorFlow's import: most of a worker's start."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

NOT_THERE: Any = None
"""What makes `import` say that there is no such module."""

CHATTER: Final = (
    "All log messages before absl::InitializeLog",
    "oneDNN custom operations are on",
    "This TensorFlow binary is optimized",
    "To enable the following instructions",
)
"""What TensorFlow says at each import, whatever level of its log one asks for. It tells nobody anything."""

LAST_LINES_SECONDS: Final = 1.0

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
        with without_chatter():
            import keras  # noqa: F401  for its side effects
            import tensorflow  # noqa: F401  for its side effects
    finally:
        gc.freeze()
        gc.enable()
        if hidden:
            del sys.modules["sklearn"]


@contextmanager
def without_chatter() -> Iterator[None]:
    """Lines of `CHATTER` do not reach standard error; all others do, also the last words of a dying process.

    Native code writes to the descriptor itself, so a program in between has to read along; where there is
    none, everything passes.
    """
    command = ["grep", "--line-buffered", "-v", "-F", *(f"--regexp={words}" for words in CHATTER)]
    try:
        between = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=2, env={"PATH": os.environ.get("PATH", "")}
        )
    except OSError:
        yield
        return
    assert between.stdin is not None
    sys.stderr.flush()
    before = os.dup(2)
    os.dup2(between.stdin.fileno(), 2)
    between.stdin.close()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, 2)
        os.close(before)
        with suppress(subprocess.TimeoutExpired):  # somebody who was started meanwhile may hold the other end
            between.wait(LAST_LINES_SECONDS)
