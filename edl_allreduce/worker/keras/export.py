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
from edl_allreduce.errors import StorageError
from edl_allreduce.storage.remote import store
from edl_allreduce.storage.url import Url, place
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
    target = place(output)
    if isinstance(target, Url):
        return _upload(model, target, spare)
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


def _upload(model: Any, target: Url, spare: Sequence[Path]) -> Written:
    """Written on this machine first; the graph of the SavedModel comes last, with which it is complete."""
    for room in spare:
        try:
            local = Path(tempfile.mkdtemp(prefix=RESCUED, dir=room))
        except OSError as error:
            log.warning("%s has no room for the model: %s", room, error)
            continue
        written = write_model(model, str(local))
        if not written.path:
            shutil.rmtree(local, ignore_errors=True)
            continue
        try:
            store().delete([target / GRAPH])
            _put(local, target, last=GRAPH)
        except StorageError as error:
            why = f"the model could not be written to {target}: {error}"
            return Written(written.path, f"{why}. It is in {local} instead")
        shutil.rmtree(local, ignore_errors=True)
        log.info("the model was uploaded to %s", target)
        return Written(str(target / KERAS_FILE), written.trouble)
    return Written(
        "", f"the model could not be written to {target}: no directory here has room to make it in"
    )


def _put(local: Path, target: Url, last: str) -> None:
    """All files of a directory under the same names, the one that says that all are there at the end."""
    found = [path for path in local.rglob("*") if path.is_file()]
    for path in sorted(found, key=lambda path: (path.name == last, path)):
        store().upload(path, target / path.relative_to(local).as_posix())


def _rescue(model: Any, spare: Sequence[Path], why: str) -> Written:
    for room in spare:
        try:
            target = Path(tempfile.mkdtemp(prefix=RESCUED, dir=room))
        except OSError as error:
            log.warning("%s has no room for the model either: %s", room, error)
            continue
        problem = _write_keras(model, target)
        if not problem:
            return Written(str(target / KERAS_FILE), f"{why}. It is in {target} instead")
        log.warning("%s has no room for the model either: %s", room, problem)
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
    target = place(output)
    if isinstance(target, Url):
        _upload_pass(model, target, number)
        return
    final = target / f"pass-{number:05d}"
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


def _upload_pass(model: Any, target: Url, number: int) -> None:
    with tempfile.TemporaryDirectory(prefix="pass-") as scratch:
        write_pass(model, scratch, number)
        name = f"pass-{number:05d}"
        if not (Path(scratch) / name / "done").exists():
            return  # no room here, which was told
        try:
            store().delete([target / name / "done"])  # of an earlier run: what follows replaces its files
            _put(Path(scratch) / name, target / name, last="done")
        except StorageError as error:  # training goes on, as with a full disk
            log.error("%s could not be written: %s", target / name, error)


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
