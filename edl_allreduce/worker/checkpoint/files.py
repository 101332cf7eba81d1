"""Checkpoints: one directory per step, complete or not there, checked when read.

    <checkpoint_dir>/version-<step>/state.bin         all variables, one after the other
                                    checkpoint.json   what they are, step, position, settings, checksum
                                    done              checksum of checkpoint.json; written last

A checkpoint is written into a hidden directory that is renamed when it is complete. File systems whose
rename is not atomic are covered by `done` and the checksums.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import threading
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np

from edl_allreduce import clock, faults, files
from edl_allreduce.core import protocol
from edl_allreduce.errors import CheckpointError, UsageError
from edl_allreduce.version import __version__
from edl_allreduce.worker import disk
from edl_allreduce.worker.loop.journal import Journal

log = logging.getLogger(__name__)

FORMAT = 1
STATE, CONTENTS, DONE = "state.bin", "checkpoint.json", "done"
_NAME = re.compile(r"version-(\d+)")
_DRAFT = re.compile(r"\.(version-(\d+))\..+\.tmp")
_CHUNK = 16 * 1024 * 1024
WRITER_NICENESS = 19

Array = np.ndarray[Any, Any]


class Variable(msgspec.Struct, frozen=True):
    """One variable of the state, as `state.bin` holds it."""

    path: str
    dtype: str
    shape: list[int]

    @property
    def bytes(self) -> int:
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape, dtype=np.int64))


class Course(msgspec.Struct, frozen=True):
    """What decides which records a position means; a job can only go on along the same course."""

    job_name: str
    seed: int
    shuffle: bool
    records: int
    fingerprint: str


class Contents(msgspec.Struct, frozen=True):
    """checkpoint.json"""

    format: int
    version: str
    step: int
    position: int
    course: Course
    journal: Journal
    model: list[Variable]
    optimizer: list[Variable]
    state_crc32: int


@dataclass(frozen=True)
class Snapshot:
    """The state between two steps: it stays as it is while training goes on and it is written."""

    step: int
    position: int
    journal: Journal
    model: list[Variable]
    optimizer: list[Variable]
    arrays: list[Array]
    """Of the model, then of the optimizer."""


@dataclass(frozen=True)
class Loaded:
    """A checkpoint that was read and found intact."""

    path: Path
    contents: Contents
    arrays: list[Array]

    @property
    def model_arrays(self) -> list[Array]:
        return self.arrays[: len(self.contents.model)]


class HoldsState(Protocol):
    """What a checkpoint needs of the trainer."""

    def state(self) -> list[Array]: ...

    def names(self) -> tuple[list[str], list[str]]: ...


# ------------------------------------------------------------------------------------------ on disk


def write(directory: Path, snapshot: Snapshot, course: Course) -> Path:
    """Write one checkpoint; returns its directory."""
    final = directory / f"version-{snapshot.step}"
    if _is_whole(final):
        return final  # the same step of the same job, written before a rank was lost
    part = files.draft_of(final)
    try:
        part.mkdir(parents=True)
        checksum = _write_arrays(part / STATE, snapshot.arrays)
        faults.reach("checkpoint", step=snapshot.step)
        contents = Contents(
            format=FORMAT,
            version=__version__,
            step=snapshot.step,
            position=snapshot.position,
            course=course,
            journal=snapshot.journal,
            model=snapshot.model,
            optimizer=snapshot.optimizer,
            state_crc32=checksum,
        )
        text = msgspec.json.format(msgspec.json.encode(contents))
        _write_file(part / CONTENTS, text)
        _write_file(part / DONE, str(zlib.crc32(text)).encode())
        files.sync_directory(part)
        try:
            part.rename(final)
        except OSError:
            if not _is_whole(final):
                raise  # otherwise somebody else was quicker
        files.sync_directory(directory)
    finally:
        shutil.rmtree(part, ignore_errors=True)  # what failed must not keep the disk full
    return final


def _is_whole(path: Path) -> bool:
    """Whether this checkpoint is there; a torn one is cleared away."""
    if not path.exists():
        return False
    try:
        read(path)
    except CheckpointError as error:
        log.warning("%s; it is replaced", error)
        _discard(path)
        return False
    return True


def read(path: Path) -> Loaded:
    """Read a checkpoint; raises CheckpointError unless it is whole."""
    try:
        text = (path / CONTENTS).read_bytes()
        marker = (path / DONE).read_bytes()
        data = np.fromfile(path / STATE, np.uint8)
    except OSError as error:
        raise CheckpointError(f"the checkpoint {path} is incomplete: {error}") from error
    if marker != str(zlib.crc32(text)).encode():
        raise CheckpointError(f"the checkpoint {path} is corrupt: the checksum of {CONTENTS} is wrong")
    try:
        contents = msgspec.json.decode(text, type=Contents)
    except msgspec.DecodeError as error:
        raise CheckpointError(f"{path / CONTENTS} is not for version {__version__}: {error}") from error
    if contents.format != FORMAT:
        raise CheckpointError(
            f"the checkpoint {path} has format {contents.format} (written by version {contents.version}), "
            f"this version reads format {FORMAT}"
        )
    variables = [*contents.model, *contents.optimizer]
    expected = sum(v.bytes for v in variables)
    if data.size != expected:
        raise CheckpointError(
            f"the checkpoint {path} is torn: {STATE} has {data.size} bytes, expected {expected}"
        )
    if zlib.crc32(data.data) != contents.state_crc32:
        raise CheckpointError(f"the checkpoint {path} is corrupt: the checksum of {STATE} is wrong")
    arrays, at = [], 0
    for variable in variables:
        part = data[at : at + variable.bytes]
        arrays.append(part.view(np.dtype(variable.dtype)).reshape(variable.shape))
        at += variable.bytes
    return Loaded(path, contents, arrays)


def versions(directory: Path) -> list[Path]:
    """Checkpoints by their names, newest first, whole or not."""
    if not directory.is_dir():
        return []
    found = [(int(m[1]), p) for p in directory.iterdir() if (m := _NAME.fullmatch(p.name))]
    return [path for _, path in sorted(found, reverse=True)]


def newest(directory: Path) -> tuple[Loaded | None, list[str]]:
    """The newest checkpoint that is whole, and what is wrong with those that are newer."""
    broken: list[str] = []
    for path in versions(directory):
        try:
            return read(path), broken
        except CheckpointError as error:
            broken.append(str(error))
    return None, broken


def number_of(path: Path) -> int:
    """The step of a checkpoint."""
    return int(path.name.removeprefix("version-"))


def prune(directory: Path, keep: int, written: int) -> None:
    """Leave the `keep` newest (0: all) up to the step just `written`.

    Newer ones could not be read when the job began, so it began before them: they are not what it would
    go on from.
    """
    there = [path for path in versions(directory) if number_of(path) <= written]
    for path in there[keep:] if keep else []:
        _discard(path)


def tidy(directory: Path) -> None:
    """Clear away what writers left who died."""
    there = versions(directory)
    last = number_of(there[0]) if there else -1
    for path in directory.glob(".version-*"):
        match = _DRAFT.fullmatch(path.name)
        if match is not None:
            files.clear_drafts(directory / match[1], alone=int(match[2]) < last)


def _discard(path: Path) -> None:
    """First out of sight, then off the disk: a half-deleted checkpoint must not look like a torn one."""
    hidden = files.draft_of(path)
    try:
        path.rename(hidden)
    except OSError as error:
        log.warning("%s cannot be removed: %s", path, error)
        return
    shutil.rmtree(hidden, ignore_errors=True)


def _write_arrays(path: Path, arrays: Sequence[Array]) -> int:
    checksum = 0
    with path.open("wb") as file:
        for array in arrays:
            flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            for start in range(0, flat.size, _CHUNK):
                part = flat[start : start + _CHUNK]
                checksum = zlib.crc32(part.data, checksum)
                file.write(part.data)
        file.flush()
        os.fsync(file.fileno())
    return checksum


def _write_file(path: Path, text: bytes) -> None:
    with path.open("wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


# ---------------------------------------------------------------------------------------- in a worker


class Checkpoints:
    """The checkpoints of one job, as one worker sees them.

    `save` copies the state and returns; a thread writes it. The memory of a copy is used again: to get new
    memory takes longer than to copy. When the disk cannot keep up, the newest snapshot waits and the one it
    replaces is dropped.
    """

    def __init__(
        self,
        directory: str,
        trainer: HoldsState,
        course: Course,
        *,
        every: int,
        keep: int,
        send: Callable[[protocol.Checkpointed], None],
    ) -> None:
        self.directory = Path(directory)
        self._trainer = trainer
        self._course = course
        self._every = every
        self._keep = keep
        self._send = send
        self._changed = threading.Condition()
        self._next: Snapshot | None = None
        self._spare: list[list[Array]] = []
        self._busy = False
        self._thread: threading.Thread | None = None
        self._saved = -1
        self._seen: list[Path] | None = None
        self._loaded: Loaded | None = None
        model, optimizer = trainer.names()
        self._infinite = set(not_finite([*model, *optimizer], trainer.state()))
        """On purpose, such as a mask: it was so from the beginning."""
        self.passed_over = ""
        """What the last search found broken, and what that means for a job that begins here."""

    def due(self, step: int) -> bool:
        return self._every > 0 and step % self._every == 0

    def newest(self) -> Loaded | None:
        """Where the job goes on if nobody holds its state. Read once, as long as no other one appears."""
        there = versions(self.directory)
        if there != self._seen:
            self._loaded, broken = newest(self.directory)
            self._seen = there
            self.passed_over = _passed_over(broken, there, self._loaded)
            if self.passed_over:
                log.warning("%s", self.passed_over)
        if self._loaded is not None:
            self._check(self._loaded)
        return self._loaded

    def forget(self) -> None:
        """The state is in the trainer now."""
        self._loaded = self._seen = None

    def _check(self, loaded: Loaded) -> None:
        was, now = loaded.contents.course, self._course
        if was.job_name != now.job_name:
            raise UsageError(
                f"{self.directory} holds checkpoints of the job {was.job_name}, this is {now.job_name}. "
                f"Give this job a --checkpoint_dir of its own; to begin with the other's model, add "
                f"--checkpoint_dir_for_init={self.directory}."
            )
        for name in ("records", "fingerprint", "seed", "shuffle"):
            if getattr(was, name) != getattr(now, name):
                raise UsageError(
                    f"{loaded.path} was made with {name}={getattr(was, name)}, the job now has "
                    f"{name}={getattr(now, name)}: the order of records differs, so it cannot go on where it "
                    "was. Use the same data and flags, or begin anew with another --checkpoint_dir "
                    "(--checkpoint_dir_for_init takes the model over)."
                )
        check_fit(loaded, self._trainer)

    def save(self, step: int, position: int, journal: Journal) -> None:
        """Copy the state; it is written while training goes on."""
        if step == self._saved:
            return
        self._saved = step
        began = clock.now()
        with self._changed:
            memory = self._spare.pop() if self._spare else []
        snapshot = _snapshot(self._trainer, step, position, journal, memory)
        with self._changed:
            if self._next is not None:
                self._spare.append(self._next.arrays)
                log.warning(
                    "the disk is slower than --checkpoint_steps=%d: the checkpoint of step %d is left out",
                    self._every, self._next.step,
                )  # fmt: skip
            self._next = snapshot
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        log.info("step %d: a checkpoint held training for %.1f ms", step, 1000 * (clock.now() - began))

    def flush(self) -> None:
        """Wait until everything is on disk."""
        with self._changed:
            self._changed.wait_for(lambda: self._next is None and not self._busy)

    def _run(self) -> None:
        with suppress(OSError):
            # Where all cores train, writing takes what they leave. On Linux a thread has its own priority.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), WRITER_NICENESS)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._next is not None)
                snapshot, self._next, self._busy = self._next, None, True
            assert snapshot is not None
            try:
                self._send(self._write(snapshot))
            finally:
                with self._changed:
                    self._spare.append(snapshot.arrays)
                    self._busy = False
                    self._changed.notify_all()

    def _write(self, snapshot: Snapshot) -> protocol.Checkpointed:
        step, where = snapshot.step, str(self.directory)
        try:
            names = [variable.path for variable in (*snapshot.model, *snapshot.optimizer)]
            spoiled = [name for name in not_finite(names, snapshot.arrays) if name not in self._infinite]
            if spoiled:
                error = f"{spoiled[0]} holds NaN or an infinity, from which nobody could go on"
                log.error("no checkpoint of step %d: %s", step, error)
                return protocol.Checkpointed(step, where, error)
            tidy(self.directory)  # there may be no room otherwise
            path = write(self.directory, snapshot, self._course)
            prune(self.directory, self._keep, step)
            tidy(self.directory)
        except Exception as error:
            text = disk.words(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            unknown = not isinstance(error, OSError)
            log.error("the checkpoint of step %d could not be written: %s", step, text, exc_info=unknown)
            return protocol.Checkpointed(step, where, text)
        log.info("checkpoint of step %d is in %s", step, path)
        return protocol.Checkpointed(step, str(path))


def not_finite(names: Sequence[str], arrays: Sequence[Array]) -> list[str]:
    """The variables that hold NaN or an infinity."""
    return [name for name, array in zip(names, arrays, strict=True) if not _is_finite(array)]


def _is_finite(array: Array) -> bool:
    # bfloat16 and its like are no kind of their own in NumPy.
    if array.dtype.kind not in "fc" and "float" not in array.dtype.name:
        return True
    flat = array.reshape(-1)
    return all(np.isfinite(flat[start : start + _CHUNK]).all() for start in range(0, flat.size, _CHUNK))


def _passed_over(broken: Sequence[str], there: Sequence[Path], loaded: Loaded | None) -> str:
    if not broken:
        return ""
    others = f" (and {len(broken) - 1} before it)" if len(broken) > 1 else ""
    found = broken[0] + others
    if loaded is None:
        return f"{found}; no whole checkpoint is left: the job begins at step 0"
    again = number_of(there[0]) - number_of(loaded.path)
    return f"{found}; the job goes on from {loaded.path.name}, {again} steps are made again"


def _snapshot(
    trainer: HoldsState, step: int, position: int, journal: Journal, memory: list[Array]
) -> Snapshot:
    """A copy of the state, in this memory if it fits."""
    state = trainer.state()
    fits = [(a.shape, a.dtype) for a in memory] == [(a.shape, a.dtype) for a in state]
    arrays = memory if fits else [np.empty_like(array) for array in state]
    for array, value in zip(arrays, state, strict=True):
        np.copyto(array, value)
    names = trainer.names()
    described = [
        Variable(name, array.dtype.name, list(array.shape))
        for name, array in zip([*names[0], *names[1]], arrays, strict=True)
    ]
    count = len(names[0])
    return Snapshot(step, position, journal, described[:count], described[count:], arrays)


def check_fit(loaded: Loaded, trainer: HoldsState, *, model_only: bool = False) -> None:
    """Whether the variables are those of this model."""
    arrays, (model, optimizer) = trainer.state(), trainer.names()
    contents = loaded.contents
    parts = [("model", contents.model, arrays[: len(model)], model)]
    if not model_only:
        parts.append(("optimizer", contents.optimizer, arrays[len(model) :], optimizer))
    for what, stored, own, names in parts:
        if len(stored) != len(own):
            raise UsageError(
                f"{loaded.path} holds {len(stored)} variables of the {what}, this {what} has {len(own)}: "
                "it was made by another one"
            )
        for variable, array, name in zip(stored, own, names, strict=True):
            if variable.shape != list(array.shape) or variable.dtype != array.dtype.name:
                raise UsageError(
                    f"{loaded.path} was made by another {what}: {variable.path} is {variable.dtype}"
                    f"{variable.shape}, but {name} is {array.dtype.name}{list(array.shape)} here"
                )


def load_for_init(
    directory: str, trainer: HoldsState, send: Callable[[protocol.Note], None] = lambda note: None
) -> Loaded:
    """The checkpoint that --checkpoint_dir_for_init names: the directory of several, or one of them."""
    path = Path(directory)
    if _NAME.fullmatch(path.name) and (path / CONTENTS).exists():
        loaded: Loaded | None = read(path)
        broken: list[str] = []
    else:
        loaded, broken = newest(path)
    if loaded is None:
        raise CheckpointError(nothing_to_begin_with(path, broken))
    for problem in broken:
        text = f"{problem}; {loaded.path.name} is used instead"
        log.warning("%s", text)
        send(protocol.Note(protocol.WARNING, text, once=True))
    check_fit(loaded, trainer, model_only=True)
    return loaded


def nothing_to_begin_with(path: Path, broken: Sequence[str] = ()) -> str:
    there = ", ".join(sorted(p.name for p in path.iterdir())[:5]) if path.is_dir() else "no directory"
    found = "; ".join(broken[:3]) or there or "nothing"
    return (
        f"--checkpoint_dir_for_init={path}: expected a whole checkpoint (version-<step>) there, found {found}"
    )
