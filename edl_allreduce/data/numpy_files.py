"""The files of numpy.save and numpy.savez, read without trust: no pickle, nothing evaluated, no memory for
what a header claims and the file has not."""

from __future__ import annotations

import math
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from edl_allreduce.data.columns import select
from edl_allreduce.data.files import cannot_read
from edl_allreduce.data.limits import most_unpacked
from edl_allreduce.data.source import Columns
from edl_allreduce.errors import DataError

Array = npt.NDArray[Any]

_MAGIC = b"\x93NUMPY"
_LENGTHS = {
    b"\x01\x00": struct.Struct("<H"),
    b"\x02\x00": struct.Struct("<I"),
    b"\x03\x00": struct.Struct("<I"),
}
"""How the length of the header is written, by version."""
_HEADER_BYTES = 64 * 1024
_PIECE = 1 << 20
_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # what numpy.savez writes

_TYPE = re.compile(r"""['"]descr['"]\s*:\s*['"]([<>|=]?[?biufcSUVMm]\d{0,9}(?:\[\w{1,10}\])?)['"]""")
_ORDER = re.compile(r"""['"]fortran_order['"]\s*:\s*(True|False)""")
_SHAPE = re.compile(r"""['"]shape['"]\s*:\s*\(([\dL, ]{0,400})\)""")

_BROKEN_ARCHIVE = (
    zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, OSError, ValueError,
    KeyError, struct.error, OverflowError,
)  # fmt: skip
"""What zipfile raises for archives that are damaged, encrypted or of a kind it does not know."""


@dataclass(frozen=True)
class _Header:
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    bytes: int
    """Its own size."""

    @property
    def payload(self) -> int:
        return int(self.dtype.itemsize) * math.prod(self.shape)


def map_array(path: Path) -> Array:
    """The array of a .npy file, memory-mapped."""
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            header = _read_header(stream, size)
        if header.payload == 0:
            return np.empty(header.shape, header.dtype)
        # asarray: a plain view of the mapping, so that what is read from it is a plain array too.
        return np.asarray(
            np.memmap(
                path,
                header.dtype,
                "r",
                offset=header.bytes,
                shape=header.shape,
                order="F" if header.fortran else "C",
            )
        )
    except OSError as error:
        raise cannot_read(path, error) from error
    except ValueError as error:
        raise unreadable(path, error) from error


def load_archive(path: Path, names: Sequence[str]) -> Columns:
    """The named arrays of an .npz file, or all of them."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {m.filename.removesuffix(".npy"): m for m in archive.infolist()}
            chosen = select(members, names, where=str(path))
            _check_sizes(path.stat().st_size, list(chosen.values()))
            return {name: _load_member(archive, member) for name, member in chosen.items()}
    except _BROKEN_ARCHIVE as error:
        raise unreadable(path, error) from error


def _check_sizes(stored: int, members: Sequence[zipfile.ZipInfo]) -> None:
    packed = [member.filename for member in members if member.compress_type not in _PACKINGS]
    if packed:
        raise ValueError(f"{packed[0]} is packed in a way that numpy.savez does not know")
    unpacked, limit = sum(member.file_size for member in members), most_unpacked(stored)
    if unpacked > limit:
        raise ValueError(
            f"its {stored} bytes claim to unpack to {unpacked}, at most {limit} are unpacked; larger arrays "
            "belong into .npy files"
        )


def _load_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    with archive.open(member) as stream:
        header = _read_header(stream, member.file_size)
        if header.bytes + header.payload != member.file_size:
            raise ValueError(f"{member.filename} has {member.file_size} bytes, its header speaks of others")
        data = np.empty(header.payload, np.uint8)
        have = 0
        while piece := stream.read(_PIECE):
            data[have : have + len(piece)] = np.frombuffer(piece, np.uint8)
            have += len(piece)
        if have != header.payload:
            raise ValueError(f"{member.filename} ends too early")
    return data.view(header.dtype).reshape(header.shape, order="F" if header.fortran else "C")


def _read_header(stream: IO[bytes], size: int) -> _Header:
    """Checked against the size of the file; ValueError says what does not fit."""
    magic = stream.read(len(_MAGIC))
    version = stream.read(2)
    if magic != _MAGIC or version not in _LENGTHS:
        raise ValueError(f"it does not begin like one but with {magic + version!r}")
    number = _LENGTHS[version]
    field = stream.read(number.size)
    length = number.unpack(field)[0] if len(field) == number.size else 0
    if not 0 < length <= _HEADER_BYTES:
        raise ValueError(f"its header has {length} bytes, at most {_HEADER_BYTES} are read")
    text = stream.read(length).decode("utf-8" if version == b"\x03\x00" else "latin-1")
    kind, order, shape = (pattern.search(text) for pattern in (_TYPE, _ORDER, _SHAPE))
    if kind is None or order is None or shape is None:
        raise ValueError(f"its header is not that of a plain array: {text[:100]!r}")
    try:
        dtype = np.dtype(kind[1])
    except TypeError as error:
        raise ValueError(f"its header names the unknown type {kind[1]!r}") from error
    numbers = [part.strip().removesuffix("L") for part in shape[1].split(",") if part.strip()]
    header = _Header(
        dtype,
        tuple(int(part) for part in numbers),
        order[1] == "True",
        len(_MAGIC) + len(version) + number.size + length,
    )
    if header.bytes + header.payload > size:
        raise ValueError(
            f"its header promises {header.payload} bytes of data, it has {max(0, size - header.bytes)}"
        )
    if header.shape and header.shape[0] and not header.payload:
        raise ValueError(f"its {header.shape[0]} rows are all empty")
    return header


def unreadable(path: Path, error: Exception) -> DataError:
    return DataError(
        f"{path}: is not a whole NumPy file of numbers or strings ({error}); write it again with numpy.save "
        "or numpy.savez, without Python objects (pickles are never loaded)"
    )
