"""The trained model on disk: a SavedModel for serving, and Keras' own file to go on with."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

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


def write_pass(model: Any, output: str, number: int) -> None:
    """The model after an epoch: `output`/pass-00000/, one file per variable, `done` when it is complete."""
    final = Path(output) / f"pass-{number:05d}"
    draft = final.with_name(f".{final.name}-{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    for variable in model.variables:
        np.save(draft / f"{variable.path.replace('/', '.')}.npy", variable.numpy())
    (draft / "done").touch()
    shutil.rmtree(final, ignore_errors=True)
    draft.rename(final)
    log.info("wrote %s", final)


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
