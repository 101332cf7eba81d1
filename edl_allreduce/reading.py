"""Small files that somebody else may have written, or damaged: never more of one than a stated size, never
a pipe on which a reader would wait for ever. And what the decoders raise for bytes that are no such thing."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

import msgspec

SMALL_FILE: Final = 256 << 20
"""Bytes of any file that describes something: a job, its events, its result, a checkpoint's contents."""

UNDECODABLE: Final = (msgspec.DecodeError, ValueError, RecursionError)
"""What msgspec and json raise for bytes that are not what was expected (bad UTF-8 is a ValueError)."""


def small_file(path: Path, limit: int = SMALL_FILE) -> bytes:
    """The whole file; OSError when it is larger, no regular file, or cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except ValueError as error:  # a NUL in the name
        raise OSError(errno.EINVAL, str(error), str(path)) from error
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", str(path))
        if status.st_size > limit:
            raise OSError(errno.EFBIG, f"has {status.st_size} bytes, at most {limit} are expected", str(path))
        return file.read(status.st_size)  # memory is taken for what is asked for: not for the limit
