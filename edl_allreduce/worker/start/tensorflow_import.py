"""TensorFlow's import: most of a worker's start."""

from __future__ import annotations

import gc
import sys
from typing import Any

NOT_THERE: Any = None
"""What makes `import` say that there is no such module."""


def import_tensorflow() -> None:
    """Import TensorFlow and Keras in about two thirds of the usual time.

    The garbage collector would look at half a million new objects again and again, while every module is kept
    for good; later it need not look at them either. Keras imports scikit-learn, where that is installed, only
    to wrap models for it, which nobody asks of a worker. A model file may still import it.
    """
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
