"""A checkpoint on disk: one directory per step, complete or not there, checked when read.

    <checkpoint_dir>/version-<step>/state.bin         all variables, one after the other
                                    checkpoint.json   what they are, step, position, settings, checksum
                                    done              checksum of checkpoint.json; written last

A checkpoint is written into a hidden directory that is renamed when it is complete. File systems whose
rename is not atomic are covered by `done` and the checksums.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import re
import shutil
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from edl_allreduce import faults, files
from edl_allreduce.errors import CheckpointError
from edl_allreduce.reading import UNDECODABLE, small_file
from edl_allreduce.storage.url import Place
from edl_allreduce.version import __version__
from edl_allreduce.worker.loop.journal import Journal

log = logging.getLogger(__name__)

FORMAT = 1
STATE, CONTENTS, DONE = "state.bin", "checkpoint.json", "done"
NAME = re.compile(r"version-(\d+)")
_DRAFT = re.compile(r"\.(version-(\d+))\..+\.tmp")
_WRITER = re.compile(rb"\d+ ([0-9a-f]{16})")
_CHUNK = 16 * 1024 * 1024

Array = np.ndarray[Any, Any]


class Variable(msgspec.Struct, frozen=True):
    """One variable of the state, as `state.bin` holds it."""

    path: str
    dtype: str
    shape: list[int]

    @property
    def bytes(self) -> int:
        return int(np.dtype(self.dtype).itemsize) * math.prod(self.shape)

    def check(self) -> None:
        """ValueError unless `state.bin` can hold such a variable; these words come from a file."""
        try:
            dtype = np.dtype(self.dtype)
        except (TypeError, SyntaxError) as error:
            raise ValueError(f"{self.path} has the unknown type {self.dtype!r}") from error
        if dtype.hasobject or dtype.name != self.dtype or any(length < 0 for length in self.shape):
            raise ValueError(f"{self.path} cannot be {self.dtype}{self.shape}")


class JobIdentity(msgspec.Struct, frozen=True):
    """Which job a checkpoint belongs to, and what decides which records a position means."""

    job_name: str
    seed: int
    shuffle: bool
    records: int
    fingerprint: str
    bits: dict[str, str] = {}
    """Of a reproducible job: what decides to which bits it comes. Such a job goes on only where it is so."""


class Contents(msgspec.Struct, frozen=True):
    """checkpoint.json"""

    format: int
    version: str
    step: int
    position: int
    course: JobIdentity
    journal: Journal
    model: list[Variable]
    optimizer: list[Variable]
    state_crc32: int
    fingerprint: str = ""
    """SHA-256 of what `fingerprint_of` says; of a reproducible job."""


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
    fingerprint: str = ""
    """Of these arrays, where the job is reproducible."""


@dataclass(frozen=True)
class Loaded:
    """A checkpoint that was read and found intact."""

    path: Place
    contents: Contents
    arrays: list[Array]

    @property
    def model_arrays(self) -> list[Array]:
        return self.arrays[: len(self.contents.model)]


def fingerprint_of(arrays: Sequence[Array]) -> str:
    """SHA-256 of the whole state: model, optimizer and whatever else decides on the next step. Names are left
    out: Keras counts them."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.name}{list(array.shape)}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def withdraw(directory: Path, step: int) -> None:
    """What was written of this step was wrong."""
    path = directory / f"version-{step}"
    if path.exists():
        _discard(path)


def write(directory: Path, snapshot: Snapshot, course: JobIdentity) -> Path:
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
            fingerprint=snapshot.fingerprint,
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


def part_names(done: bytes) -> tuple[str, str]:
    """The files of state and contents. In object storage `done` also says who wrote them (`shelf`)."""
    writer = _WRITER.fullmatch(done)
    if writer is None:
        return STATE, CONTENTS
    return f"state-{writer[1].decode()}.bin", f"checkpoint-{writer[1].decode()}.json"


def read(directory: Path, shown: Place | None = None) -> Loaded:
    """Read a checkpoint; raises CheckpointError unless it is whole. `shown`: where it really is."""
    path = shown or directory
    try:
        marker = small_file(directory / DONE)
        state, contained = (directory / name for name in part_names(marker))
        text = small_file(contained)
        size = state.stat().st_size
    except OSError as error:
        raise CheckpointError(f"the checkpoint {path} is incomplete: {error}") from error
    if marker.split(b" ")[0] != str(zlib.crc32(text)).encode():
        raise CheckpointError(f"the checkpoint {path} is corrupt: the checksum of {CONTENTS} is wrong")
    try:
        contents = msgspec.json.decode(text, type=Contents)
        variables = [*contents.model, *contents.optimizer]
        for variable in variables:
            variable.check()
    except UNDECODABLE as error:
        raise CheckpointError(f"{path / CONTENTS} is not for version {__version__}: {error}") from error
    if contents.format != FORMAT:
        raise CheckpointError(
            f"the checkpoint {path} has format {contents.format} (written by version {contents.version}), "
            f"this version reads format {FORMAT}"
        )
    expected = sum(v.bytes for v in variables)
    if size != expected:
        raise CheckpointError(f"the checkpoint {path} is torn: {STATE} has {size} bytes, expected {expected}")
    try:
        data = np.fromfile(state, np.uint8)
    except OSError as error:
        raise CheckpointError(f"the checkpoint {path} is incomplete: {error}") from error
    if data.size != expected or zlib.crc32(data.data) != contents.state_crc32:
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
    found = [(int(m[1]), p) for p in directory.iterdir() if (m := NAME.fullmatch(p.name))]
    return [path for _, path in sorted(found, reverse=True)]


def number_of(path: Place) -> int:
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


def not_finite(names: Sequence[str], arrays: Sequence[Array]) -> list[str]:
    """The variables that hold NaN or an infinity."""
    return [name for name, array in zip(names, arrays, strict=True) if not _is_finite(array)]


def _is_finite(array: Array) -> bool:
    # bfloat16 and its like are no kind of their own in NumPy.
    if array.dtype.kind not in "fc" and "float" not in array.dtype.name:
        return True
    flat = array.reshape(-1)
    return all(np.isfinite(flat[start : start + _CHUNK]).all() for start in range(0, flat.size, _CHUNK))
