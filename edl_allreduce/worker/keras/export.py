"""The trained model on disk: a SavedModel for serving, and Keras' own file to go on with."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from edl_allreduce import files
from edl_allreduce.worker import disk
from edl_allreduce.worker.loop.steps import Written

log = logging.getLogger(__name__)

KERAS_FILE = "model.keras"
GRAPH = "saved_model.pb"
SAVED_MODEL = "saved_model"
"""Names its draft, a directory; its parts go into the output directory itself."""
RESCUED = "rescued-model-"


def write_model(model: Any, output: str, spare: Sequence[Path] = ()) -> Written:
    """Write `output`/model.keras, and a SavedModel into `output` itself.

    Where that cannot be, model.keras goes into the first of the `spare` directories that has room.
    """
    target = Path(output)
    problem = _write_keras(model, target)
    if problem:
        return _rescue(model, spare, f"the model could not be written to {target}: {problem}")
    path = str(target / KERAS_FILE)
    try:
        _write_saved_model(model, target)
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        # Not every model can be traced for serving; the training is not lost for that.
        log.warning("no SavedModel was written, only %s: %s: %s", KERAS_FILE, type(error).__name__, error)
    except (OSError, tf.errors.OpError) as error:
        log.error("no SavedModel was written: %s", error)
        return Written(path, f"of the model only {KERAS_FILE} fits into {target}: {_words(error)}")
    return Written(path)


def _rescue(model: Any, spare: Sequence[Path], why: str) -> Written:
    for place in spare:
        try:
            target = Path(tempfile.mkdtemp(prefix=RESCUED, dir=place))
        except OSError as error:
            log.warning("%s has no room for the model either: %s", place, error)
            continue
        problem = _write_keras(model, target)
        if not problem:
            return Written(str(target / KERAS_FILE), f"{why}. It is in {target} instead")
        log.warning("%s has no room for the model either: %s", place, problem)
        shutil.rmtree(target, ignore_errors=True)
    return Written("", why)


def _write_keras(model: Any, target: Path) -> str:
    """Write model.keras; returns why that failed, or nothing."""
    try:
        target.mkdir(parents=True, exist_ok=True)
        for written in (KERAS_FILE, SAVED_MODEL):
            files.clear_drafts(target / written, alone=True)
        with files.drafted(target / KERAS_FILE) as draft:
            model.save(draft)
    except Exception as error:
        known = isinstance(error, (OSError, tf.errors.OpError))
        log.error("%s could not be written: %s", target / KERAS_FILE, error, exc_info=not known)
        return _words(error)
    return ""


def _words(error: Exception) -> str:
    if isinstance(error, OSError):
        return disk.words(error)
    if isinstance(error, tf.errors.OpError):
        return str(error.message).rpartition("; ")[2].partition(" [Op:")[0]
    return f"{type(error).__name__}: {error}"


def write_pass(model: Any, output: str, number: int) -> None:
    """The model after an epoch: `output`/pass-00000/, one file per variable, `done` when it is complete."""
    final = Path(output) / f"pass-{number:05d}"
    try:
        files.clear_drafts(final, alone=True)
        with files.new_directory(final) as draft:
            for variable in model.variables:
                np.save(draft / f"{variable.path.replace('/', '.')}.npy", variable.numpy())
            (draft / "done").touch()
    except OSError as error:  # training goes on: the next epoch may find room
        log.error("%s could not be written: %s", final, disk.words(error))
    else:
        log.info("wrote %s", final)


def _write_saved_model(model: Any, target: Path) -> None:
    """The graph comes last: with it the SavedModel is complete."""
    draft = files.draft_of(target / SAVED_MODEL)
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
