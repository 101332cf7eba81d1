"""From what the user wrote after --training_data to a list of files of one format."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from edl_allreduce.data.files import DataFile, cannot_read
from edl_allreduce.data.tfrecord import looks_like_tfrecord
from edl_allreduce.errors import DataError


class Kind(StrEnum):
    """The formats. The values are what --data_reader_params="reader_type=..." takes."""

    TFRECORD = "tfrecord"
    RECORDIO = "recordio"
    CSV = "csv"
    NUMPY = "numpy"
    IMAGES = "images"
    PARQUET = "parquet"
    ARRAYRECORD = "arrayrecord"


@dataclass(frozen=True)
class Located:
    """Files of one format, in the order of their records."""

    kind: Kind
    root: Path
    files: tuple[DataFile, ...]


_SUFFIXES = {
    ".tfrecord": Kind.TFRECORD,
    ".tfrecords": Kind.TFRECORD,
    ".recordio": Kind.RECORDIO,
    ".csv": Kind.CSV,
    ".tsv": Kind.CSV,
    ".npy": Kind.NUMPY,
    ".npz": Kind.NUMPY,
    ".parquet": Kind.PARQUET,
    ".array_record": Kind.ARRAYRECORD,
    ".arrayrecord": Kind.ARRAYRECORD,
    ".jpg": Kind.IMAGES,
    ".jpeg": Kind.IMAGES,
    ".png": Kind.IMAGES,
    ".gif": Kind.IMAGES,
    ".bmp": Kind.IMAGES,
    ".webp": Kind.IMAGES,
}

_MAGICS = (
    (b"\x04\x03\x02\x01", Kind.RECORDIO),
    (b"\x93NUMPY", Kind.NUMPY),
    (b"PAR1", Kind.PARQUET),
    (b"\xff\xd8\xff", Kind.IMAGES),
    (b"\x89PNG\r\n", Kind.IMAGES),
)

_COMPANIONS = frozenset({".crc", ".html", ".json", ".log", ".md", ".pbtxt", ".txt", ".yaml", ".yml"})
"""Suffixes of files that lie beside data and are not data."""

_COMPRESSED = frozenset({".gz", ".bz2", ".xz", ".zst", ".zip"})


def parse_kind(name: str) -> Kind:
    """The format named by reader_type; case does not matter, ElasticDL wrote RecordIO and CSV."""
    wanted = name.strip().lower().replace("_", "")
    if wanted == "odps":
        raise DataError(
            "reader_type=ODPS: MaxCompute tables have no access by record index; export the table to CSV or "
            f"Parquet files, or give the model file a custom_data_reader. Known types: {_known()}"
        )
    try:
        return Kind(wanted)
    except ValueError:
        raise DataError(f"reader_type={name!r} is not known; it must be one of {_known()}") from None


def locate(path: str, forced: Kind | None = None) -> Located:
    """Expand a directory, a glob, a file or a comma-separated list of them, and find the format."""
    if "://" in path:
        raise DataError(
            f"{path}: only paths of this machine's file system can be read; mount the bucket or the file "
            "system (--volume in a cluster) and give the path of the mount"
        )
    parts = _parts(path)
    files = [file for part in parts for file in _expand(part)]
    if not files:
        raise DataError(f"{path}: no data files there; expected files of one of these formats: {_known()}")
    if len(parts) > 1:
        _refuse_duplicates(files)
    kinds = {file: _detect(file) for file in files}
    if forced is not None:
        kept = [f for f in files if kinds[f] == forced or _may_be(f, kinds[f], forced)]
        if not kept:
            raise DataError(
                f"{path}: no file there can be read as {forced} (reader_type); found {_listing(files)}"
            )
        kind = forced
    else:
        kept = [f for f in files if kinds[f] is not None or f.suffix.lower() not in _COMPANIONS]
        kind = _agree(path, kept or files, kinds)
    root = _root(parts, kept)
    return Located(kind, root, tuple(DataFile.of(file, root) for file in kept))


def _parts(path: str) -> list[Path]:
    whole = Path(path).expanduser()
    if whole.exists() or "," not in path:
        names = [path]
    else:
        names = [name.strip() for name in path.split(",") if name.strip()]
    parts: list[Path] = []
    for name in names:
        expanded = os.path.expanduser(name)  # noqa: PTH111 - Path() would swallow a glob's trailing parts
        if os.path.lexists(expanded):
            parts.append(Path(expanded))
        elif glob.has_magic(expanded):
            found = sorted(glob.glob(expanded, recursive=True))  # noqa: PTH207 - takes absolute patterns too
            if not found:
                raise DataError(f"{name}: no file matches this pattern; check it with: ls {name}")
            parts += [Path(item) for item in found]
        else:
            raise DataError(
                f"{name}: no such file or directory; give a directory, a file, a glob or a comma-separated "
                "list. In a cluster the path must exist inside the pods (--volume)"
            )
    return parts


def _expand(part: Path) -> list[Path]:
    if not part.is_dir():
        if part.exists() and not part.is_file():  # a pipe would be waited for, for ever
            raise DataError(f"{part}: is neither a file nor a directory; copy the data into a file")
        return [part]
    files, directories = _listdir(part)
    if any(_is_image(file) for file in files):
        return _walk(part)  # a class of images may have directories of its own
    if not all(file.suffix.lower() in _COMPANIONS for file in files):
        return files
    inside = [file for directory in directories for file in _walk(directory)]
    if inside and all(map(_is_image, inside)):
        return inside
    if inside:
        raise DataError(
            f"{part}: holds no data files itself, only directories ({_listing(directories)}); name the one "
            f"to read, for example {directories[0]}, or a glob such as {part / '*' / '*'}"
        )
    return files


def _is_image(file: Path) -> bool:
    return _SUFFIXES.get(file.suffix.lower()) is Kind.IMAGES


def _listdir(directory: Path) -> tuple[list[Path], list[Path]]:
    """Files and directories by name; hidden ones and those beginning with _ are not data."""
    try:
        with os.scandir(directory) as entries:
            shown = sorted((e for e in entries if not e.name.startswith((".", "_"))), key=lambda e: e.name)
            files = [directory / e.name for e in shown if e.is_file()]
            return files, [directory / e.name for e in shown if e.is_dir()]
    except OSError as error:
        raise cannot_read(directory, error) from error


def _walk(directory: Path) -> list[Path]:
    """All files below, each directory once: a link may lead back."""
    found: list[Path] = []
    seen: set[Path] = set()
    waiting = [directory]
    while waiting:
        place = waiting.pop()
        real = place.resolve()
        if real in seen:
            continue
        seen.add(real)
        files, directories = _listdir(place)
        found += files
        waiting += reversed(directories)
    return found


def _detect(file: Path) -> Kind | None:
    suffix = file.suffix.lower()
    if suffix in _SUFFIXES:
        return _SUFFIXES[suffix]
    if suffix in _COMPANIONS:
        return None
    try:
        with file.open("rb") as stream:
            head = stream.read(16)
    except OSError as error:
        raise cannot_read(file, error) from error
    for magic, kind in _MAGICS:
        if head.startswith(magic):
            return kind
    if looks_like_tfrecord(head):
        return Kind.TFRECORD
    if suffix in _COMPRESSED or head.startswith(b"\x1f\x8b"):
        raise DataError(
            f"{file}: is compressed as a whole, so its records cannot be found by number; decompress it "
            "first (RecordIO compresses inside the file and needs no such step)"
        )
    if ".tfrecord" in file.name:  # data.tfrecord-00000-of-00010, empty or damaged
        return Kind.TFRECORD
    return None


def _may_be(file: Path, detected: Kind | None, forced: Kind) -> bool:
    if detected is not None:
        return False
    return file.suffix.lower() not in _COMPANIONS or (forced is Kind.CSV and file.suffix.lower() == ".txt")


def _agree(path: str, files: Sequence[Path], kinds: dict[Path, Kind | None]) -> Kind:
    # An empty file without a suffix carries no mark; it takes the format of its neighbours.
    unknown = [file for file in files if kinds[file] is None and file.stat().st_size > 0]
    if unknown:
        raise DataError(
            f"{unknown[0]}: its format is not recognised by name or content; move it away, give a glob that "
            f'leaves it out, or name the format with --data_reader_params="reader_type=..." ({_known()})'
        )
    found = sorted({kind for kind in kinds.values() if kind is not None})
    if len(found) > 1:
        raise DataError(
            f"{path}: files of several formats are there ({', '.join(found)}); give a glob that matches one "
            "of "
            f'them or choose with --data_reader_params="reader_type={found[0]}"'
        )
    if not found:
        raise DataError(f"{path}: all {len(files)} files are empty ({_listing(files)}); write the data again")
    return found[0]


def _refuse_duplicates(files: Iterable[Path]) -> None:
    seen: set[Path] = set()
    for file in files:
        real = file.resolve()
        if real in seen:
            raise DataError(f"{file}: is named twice; each record must count once, so name each file once")
        seen.add(real)


def _root(parts: Sequence[Path], files: Sequence[Path]) -> Path:
    if len(parts) == 1 and parts[0].is_dir():
        return parts[0]
    return Path(os.path.commonpath([file.absolute().parent for file in files]))


def _listing(paths: Sequence[Path]) -> str:
    names = ", ".join(path.name for path in paths[:3])
    return names if len(paths) <= 3 else f"{names} and {len(paths) - 3} more"


def _known() -> str:
    return ", ".join(Kind)
