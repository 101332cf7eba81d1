"""Predictions on disk: one file per task, which appear together when all are there.

    <output>/predictions-000000.npy    .npz for a model with several outputs
             predictions.json          the files in order, written last

Until then the files are in a hidden directory of this run, so that nothing of another run is ever mixed in
or destroyed by a job that does not come to its end.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from edl_allreduce.errors import DataError, UsageError
from edl_allreduce.files import AtomicFile, write
from edl_allreduce.reading import UNDECODABLE, small_file

INDEX = "predictions.json"
FILES = "predictions-*.np[yz]"
HIDDEN = ".predictions-"


class Predictions(np.ndarray[Any, Any]):
    """An array that also has the method by which files written for ElasticDL get one."""

    def numpy(self) -> np.ndarray[Any, Any]:
        return np.asarray(self)


def as_predictions(batch: Any) -> Any:
    """The outputs of one minibatch, for a PredictionOutputsProcessor."""
    if isinstance(batch, dict):
        return {name: as_predictions(part) for name, part in batch.items()}
    if isinstance(batch, list | tuple):
        return [as_predictions(part) for part in batch]
    return np.asarray(batch).view(Predictions)


class Index(msgspec.Struct, frozen=True):
    """predictions.json"""

    records: int
    files: list[str]
    order: str = "files in this order, rows in the order of the records of --prediction_data"
    left_out: list[int] = []
    """Records that could not be read; they have no row."""
    run: str = ""


class _Task(msgspec.Struct, frozen=True):
    """What is known of a task besides its file; written after it."""

    file: str
    """Empty when no record of it could be read."""
    left_out: list[int]


def refuse_others(directory: Path, own_run: str = "") -> None:
    """Whether predictions of another run are there."""
    if own_run and _run_of(directory) == own_run:
        return  # this very job: whoever concluded it died before it could say so
    if (directory / INDEX).exists() or next(directory.glob(FILES), None) is not None:
        raise UsageError(
            f"--output={directory} holds the predictions of another run. Choose another directory, or say "
            "--overwrite to replace them."
        )


def _read_task(path: Path) -> _Task:
    try:
        return msgspec.json.decode(small_file(path), type=_Task)
    except (OSError, *UNDECODABLE) as error:
        raise DataError(
            f"{path} cannot be read ({error}): part of the predictions is lost. Remove {path.parent} and "
            "predict again"
        ) from error


def _run_of(directory: Path) -> str:
    try:
        return msgspec.json.decode(small_file(directory / INDEX), type=Index).run
    except (OSError, *UNDECODABLE):
        return ""


class PredictionFiles:
    """The files of one run, as each of its workers sees them."""

    def __init__(self, directory: Path, run: str) -> None:
        self.directory = directory
        self._run = run
        self._hidden = directory / f"{HIDDEN}{run}"

    def begin(self, *, overwrite: bool) -> None:
        """Nothing is made here: a worker may begin when the others have published already."""
        if not overwrite and not self._publishing:
            refuse_others(self.directory, self._run)

    @property
    def _publishing(self) -> bool:
        """A worker died while it moved the files to their place."""
        return (self._hidden / INDEX).exists()

    def write(self, number: int, batches: Sequence[Any], left_out: list[int]) -> None:
        """Whoever does a task again writes the same file."""
        self._hidden.mkdir(parents=True, exist_ok=True)
        name = ""
        if batches:
            named, several = isinstance(batches[0], dict), isinstance(batches[0], list | tuple)
            name = f"predictions-{number:06d}.{'npz' if named or several else 'npy'}"
            with AtomicFile(self._hidden / name) as file:
                if named:
                    merged: dict[str, Any] = {k: np.concatenate([b[k] for b in batches]) for k in batches[0]}
                    np.savez(file.stream, **merged)
                elif several:
                    np.savez(file.stream, *(np.concatenate(parts) for parts in zip(*batches, strict=True)))
                else:
                    np.save(file.stream, np.concatenate(batches))
        task = msgspec.json.encode(_Task(name, left_out))
        write(self._hidden / f"task-{number:06d}.json", task, durable=True)

    def publish(self, records: int, tasks: int, *, overwrite: bool) -> None:
        """Move all files to their place; may be done again by another worker, wherever one died."""
        if _run_of(self.directory) == self._run:
            return
        if not self._publishing:
            if not overwrite:
                refuse_others(self.directory)
            done = [_read_task(path) for path in sorted(self._hidden.glob("task-*.json"))]
            if len(done) != tasks:
                raise DataError(
                    f"{self.directory} holds the predictions of {len(done)} tasks, expected {tasks}: all "
                    "workers must see the same --output"
                )
            for path in [self.directory / INDEX, *self.directory.glob(FILES)]:
                path.unlink(missing_ok=True)
            index = Index(
                records=records,
                files=[task.file for task in done if task.file],
                left_out=[record for task in done for record in task.left_out],
                run=self._run,
            )
            write(self._hidden / INDEX, msgspec.json.format(msgspec.json.encode(index)), durable=True)
        for path in sorted(self._hidden.glob(FILES)):
            path.replace(self.directory / path.name)
        (self._hidden / INDEX).replace(self.directory / INDEX)
        for left in self.directory.glob(f"{HIDDEN}*"):
            shutil.rmtree(left, ignore_errors=True)  # ours, and those of runs that did not come to an end
