"""What a file may ask for. A size that a file claims is compared with what the file has, and with a limit,
before memory is taken for it: a flipped bit must not ask for 32 GiB."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

from edl_allreduce.data.files import cannot_read
from edl_allreduce.errors import DataError

UNPACKED_BYTES = 1 << 30
"""What any compressed file may unpack to, however small it is."""
UNPACKED_RATIO = 32
"""How many times its own size a larger one may unpack to. Data that trains well packs 2 to 10 times."""
CHUNK_BYTES = 256 << 20
"""What one compressed part of a file that is read by parts may unpack to. ElasticDL's chunks have 32 MiB."""
_GZIP = 16 + zlib.MAX_WBITS
_PIECE = 4 << 20


class Excess(ValueError):
    """More than is allowed."""


def most_unpacked(stored: int) -> int:
    """Bytes that a file of this size may unpack to."""
    return max(UNPACKED_BYTES, UNPACKED_RATIO * stored)


def gunzip(packed: bytes, limit: int) -> bytes:
    """Unpack gzip, as many members as there are; Excess beyond the limit, ValueError when it is damaged."""
    parts: list[bytes] = []
    have = 0
    try:
        while packed:
            member = zlib.decompressobj(_GZIP)
            while not member.eof:
                part = member.decompress(packed, min(_PIECE, limit + 1 - have))
                if not part and not member.eof:
                    raise ValueError("it ends too early")
                packed = member.unconsumed_tail or member.unused_data
                parts.append(part)
                have += len(part)
                if have > limit:
                    raise Excess(f"it unpacks to more than {limit >> 20} MiB")
            packed = packed.lstrip(b"\0")  # padding, as tapes have it
    except zlib.error as error:
        raise ValueError(str(error)) from error
    return b"".join(parts)


def whole_file(path: Path, limit: int = UNPACKED_BYTES) -> bytes:
    """All of a file that is meant to be small; DataError for one that is not, or cannot be read."""
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > limit:
                raise DataError(
                    f"{path}: has {size} bytes, at most {limit} are expected there; copy or download it again"
                )
            return stream.read(size)
    except OSError as error:
        raise cannot_read(path, error) from error
