"""Places to write to: tried before a job begins, and named in plain words when they fail."""

from __future__ import annotations

import errno
import os
import uuid
from pathlib import Path

from edl_allreduce.errors import StorageError, UsageError
from edl_allreduce.storage.remote import store
from edl_allreduce.storage.url import is_url, place

TRIAL_BYTES = 4096
"""One block: a full disk takes an empty file."""

CURES = {
    errno.ENOSPC: "free some space, or choose a directory on another disk",
    errno.EDQUOT: "your quota is used up: free some space, or choose a directory on another disk",
    errno.EROFS: "choose a directory on a disk that can be written",
    errno.EACCES: "choose a directory that you may write to, or have its rights changed",
    errno.EPERM: "choose a directory that you may write to, or have its rights changed",
    errno.ENOTDIR: "a part of the path is a file: choose another path, or move the file away",
    errno.EEXIST: "it is a file, and a directory is needed: choose another path, or move the file away",
}


def words(error: Exception) -> str:
    """What the system said, without number and path: people know where they write to."""
    return (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__


def try_place(flag: str, given: str) -> None:
    """The same for a place in object storage, or on a disk."""
    where = place(given)
    if isinstance(where, Path):
        try_directory(flag, where)
        return
    trial = where / f".elasticdl-trial-{uuid.uuid4().hex}"
    try:
        store().write(trial, bytes(TRIAL_BYTES))
        store().delete([trial])
    except StorageError as error:
        raise UsageError(f"{flag}: {error}") from error


def refuse_url(flag: str, given: str) -> None:
    """For what needs a file system."""
    if is_url(given):
        raise UsageError(f"{flag}={given}: cannot be in object storage; give a directory")


def try_directory(flag: str, directory: Path, *, private: bool = False) -> None:
    """Make the directory and write into it: nobody must train for hours to learn that this fails."""
    trial = directory / f".elasticdl-trial-{uuid.uuid4().hex}"  # in pods all processes have the number 1
    try:
        directory.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
        try:
            _write(trial)
        finally:
            trial.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(_refusal(flag, directory, error)) from error


def try_file(flag: str, path: Path) -> None:
    """The same for a file that is written to the end of."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab"):
            pass
    except OSError as error:
        raise UsageError(_refusal(flag, path, error)) from error


def _write(path: Path) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        os.write(descriptor, bytes(TRIAL_BYTES))
        os.fsync(descriptor)  # some disks say only now that they are full
    finally:
        os.close(descriptor)


def _refusal(flag: str, path: Path, error: OSError) -> str:
    cure = CURES.get(error.errno or 0, "choose another place")
    return f"{flag}={path} cannot be written: {words(error)}; {cure}."
