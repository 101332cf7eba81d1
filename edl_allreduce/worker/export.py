"""The trained model on disk: a SavedModel for serving, and Keras' own file to go on with."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

KERAS_FILE = "model.keras"
GRAPH = "saved_model.pb"


def write_model(model: Any, output: str) -> str:
    """Write `output`/model.keras, and a SavedModel into `output` itself; returns the former."""
    target = Path(output)
    target.mkdir(parents=True, exist_ok=True)
    draft = target / f".model-{os.getpid()}.keras"
    model.save(draft)
    draft.replace(target / KERAS_FILE)
    try:
        _write_saved_model(model, target)
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        # Not every model can be traced for serving; the training is not lost for that.
        log.warning("no SavedModel was written, only %s: %s: %s", KERAS_FILE, type(error).__name__, error)
    return str(target / KERAS_FILE)


def _write_saved_model(model: Any, target: Path) -> None:
    """The graph comes last: with it the SavedModel is complete."""
    draft = target / f".saved-model-{os.getpid()}"
    shutil.rmtree(draft, ignore_errors=True)
    try:
        model.export(draft, verbose=False)
        (target / GRAPH).unlink(missing_ok=True)
        for part in sorted(draft.iterdir(), key=lambda p: p.name == GRAPH):
            final = target / part.name
            if final.is_dir():
                shutil.rmtree(final)
            part.rename(final)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
