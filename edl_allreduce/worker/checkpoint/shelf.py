"""Where the checkpoints of a job are: a directory, or a place in object storage.

Object storage has no rename. There the parts are written first, under names that no other writer uses, and
`done` last, which names them: with it a checkpoint is there, without it nothing is.

    <checkpoint_dir>/version-<step>/state-<writer>.bin
                                    checkpoint-<writer>.json
                                    done                       checksum of the latter, and the writer
"""

from __future__ import annotations

import dataclasses
import logging
import secrets
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from edl_allreduce.errors import CheckpointError, ObjectMissing, StorageError
from edl_allreduce.reading import SMALL_FILE
from edl_allreduce.storage.remote import store
from edl_allreduce.storage.url import Object, Place, Url, place
from edl_allreduce.worker.checkpoint import format as on_disk
from edl_allreduce.worker.checkpoint.format import (
    CONTENTS,
    DONE,
    NAME,
    STATE,
    JobIdentity,
    Loaded,
    Snapshot,
    number_of,
    part_names,
)

log = logging.getLogger(__name__)


class Shelf(Protocol):
    """The checkpoints of one job."""

    where: Place

    def versions(self) -> Sequence[Place]:
        """Newest first, by their names. An error when nobody can tell: a job must not begin anew for that."""

    def read(self, path: Place) -> Loaded:
        """One of them; CheckpointError unless it is whole."""

    def write(self, snapshot: Snapshot, course: JobIdentity) -> Place: ...

    def prune(self, keep: int, written: int) -> None:
        """Leave the `keep` newest (0: all) up to the step just `written`."""

    def tidy(self) -> None:
        """Clear away what writers left who died."""

    def withdraw(self, step: int) -> None:
        """What was written of this step was wrong."""


def shelf(directory: str) -> Shelf:
    where = place(directory)
    return BucketShelf(where) if isinstance(where, Url) else DiskShelf(where)


def newest(there: Shelf) -> tuple[Loaded | None, list[str]]:
    """The newest checkpoint that is whole, and what is wrong with those that are newer."""
    broken: list[str] = []
    for path in there.versions():
        try:
            return there.read(path), broken
        except CheckpointError as error:
            broken.append(str(error))
    return None, broken


class DiskShelf:
    """A directory that all workers see."""

    def __init__(self, where: Path) -> None:
        self.where: Place = where
        self._directory = where

    def versions(self) -> Sequence[Place]:
        return on_disk.versions(self._directory)

    def read(self, path: Place) -> Loaded:
        return on_disk.read(self._directory / path.name)

    def write(self, snapshot: Snapshot, course: JobIdentity) -> Place:
        return on_disk.write(self._directory, snapshot, course)

    def prune(self, keep: int, written: int) -> None:
        on_disk.prune(self._directory, keep, written)

    def tidy(self) -> None:
        on_disk.tidy(self._directory)

    def withdraw(self, step: int) -> None:
        on_disk.withdraw(self._directory, step)


class BucketShelf:
    """Object storage."""

    def __init__(self, where: Url) -> None:
        self.where: Place = where
        self._url = where
        self._store = store()

    def versions(self) -> Sequence[Place]:
        objects = self._objects()
        whole = [step for step, found in objects.items() if any(one.name == DONE for one in found)]
        return [self._version(step) for step in sorted(whole, reverse=True)]

    def read(self, path: Place) -> Loaded:
        """Through files of this process, which go again."""
        path = self._url / path.name
        with TemporaryDirectory(prefix="checkpoint-") as scratch:
            try:
                done = self._store.whole(path / DONE, SMALL_FILE)
                (Path(scratch) / DONE).write_bytes(done)
                for name in part_names(done):
                    self._store.download(self._store.look(path / name), Path(scratch) / name)
            except ObjectMissing as error:
                raise CheckpointError(f"the checkpoint {path} is incomplete: {error}") from error
            return dataclasses.replace(on_disk.read(Path(scratch), shown=path), path=path)

    def write(self, snapshot: Snapshot, course: JobIdentity) -> Place:
        path = self._version(snapshot.step)
        if self._is_whole(path):
            return path  # the same step of the same job, written before a rank was lost
        with TemporaryDirectory(prefix="checkpoint-") as scratch:
            local = on_disk.write(Path(scratch), snapshot, course)
            done = (local / DONE).read_bytes() + b" " + secrets.token_hex(8).encode()
            for own, name in zip((STATE, CONTENTS), part_names(done), strict=True):
                self._store.upload(local / own, path / name)
            self._store.write(path / DONE, done)
        return path

    def prune(self, keep: int, written: int) -> None:
        there = [number_of(path) for path in self.versions() if number_of(path) <= written]
        for step in there[keep:] if keep else []:
            self._discard(step)

    def tidy(self) -> None:
        """Parts without `done` of steps before the newest: nobody writes them any more."""
        objects = self._objects()
        whole = {step for step, found in objects.items() if any(one.name == DONE for one in found)}
        for step in objects:
            if step not in whole and step < max(whole, default=-1):
                self._discard(step)

    def withdraw(self, step: int) -> None:
        self._discard(step)

    def _version(self, step: int) -> Url:
        return self._url / f"version-{step}"

    def _objects(self) -> dict[int, list[Object]]:
        """All that belongs to each step."""
        found: dict[int, list[Object]] = {}
        for one in self._store.below(self._url):
            match = NAME.fullmatch(one.parent.name)
            if match is not None and one.parent.parent == self._url:
                found.setdefault(int(match[1]), []).append(one)
        return found

    def _is_whole(self, path: Url) -> bool:
        """Whether this checkpoint is there; a broken one is cleared away, but no parts of other writers."""
        try:
            done = self._store.whole(path / DONE, SMALL_FILE)
        except ObjectMissing:
            return False
        try:
            self.read(path)
        except CheckpointError as error:
            log.warning("%s; it is replaced", error)
            self._store.delete(path / name for name in (DONE, *part_names(done)))
            return False
        return True

    def _discard(self, step: int) -> None:
        """`done` first: what is half deleted must not look like a torn checkpoint."""
        try:
            found = self._objects().get(step, [])
            self._store.delete(one.url for one in sorted(found, key=lambda one: one.name != DONE))
        except StorageError as error:
            log.warning("%s cannot be removed: %s", self._version(step), error)
