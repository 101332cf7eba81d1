"""From what the user wrote after --training_data to a list of files of one format."""

from __future__ import annotations

import fnmatch
import glob
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from edl_allreduce.data.files import DataFile, DataPath, cannot_read, for_each, head_of
from edl_allreduce.data.tfrecord import looks_like_tfrecord
from edl_allreduce.errors import DataError
from edl_allreduce.storage.remote import store
from edl_allreduce.storage.url import Object, Place, Url, is_url, place


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

_HIDDEN = (".", "_")

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
    if is_url(path):
        return _located(path, forced, *_objects(path))
    parts = _parts(path.removeprefix("file://"))
    files: list[DataPath] = [file for part in parts for file in _expand(part, _on_disk)]
    if len(parts) > 1:
        _refuse_duplicates(files)
    return _located(path, forced, parts, files)


def _located(path: str, forced: Kind | None, parts: Sequence[Place], files: Sequence[DataPath]) -> Located:
    if not files:
        raise DataError(f"{path}: no data files there; expected files of one of these formats: {_known()}")
    found = for_each(files, _detect, remote=isinstance(files[0], Object))
    kinds = dict(zip(files, found, strict=True))
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
    return Located(kind, tuple(_named(parts, kept)))


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


Listed = tuple[Sequence[DataPath], Sequence[Place]]
"""Files and directories by name; hidden ones and those beginning with _ are not data."""


def _expand(part: Place, listed: Callable[[Place], Listed]) -> Sequence[DataPath]:
    if isinstance(part, Object):
        return [part]
    if isinstance(part, Path) and not part.is_dir():
        if part.exists() and not part.is_file():  # a pipe would be waited for, for ever
            raise DataError(f"{part}: is neither a file nor a directory; copy the data into a file")
        return [part]
    files, directories = listed(part)
    if any(_is_image(file) for file in files):
        return _walk(part, listed)  # a class of images may have directories of its own
    if not all(file.suffix.lower() in _COMPANIONS for file in files):
        return files
    inside = [file for directory in directories for file in _walk(directory, listed)]
    if inside and all(map(_is_image, inside)):
        return inside
    if inside:
        raise DataError(
            f"{part}: holds no data files itself, only directories ({_listing(directories)}); name the one "
            f"to read, for example {directories[0]}, or a glob such as {part / '*' / '*'}"
        )
    return files


def _is_image(file: DataPath) -> bool:
    return _SUFFIXES.get(file.suffix.lower()) is Kind.IMAGES


def _on_disk(directory: Place) -> Listed:
    assert isinstance(directory, Path)
    try:
        with os.scandir(directory) as entries:
            shown = sorted((e for e in entries if not e.name.startswith(_HIDDEN)), key=lambda e: e.name)
            files = [directory / e.name for e in shown if e.is_file()]
            return files, [directory / e.name for e in shown if e.is_dir()]
    except OSError as error:
        raise cannot_read(directory, error) from error


def _walk(directory: Place, listed: Callable[[Place], Listed]) -> list[DataPath]:
    """All files below, each directory once: a link may lead back."""
    found: list[DataPath] = []
    seen: set[Place] = set()
    waiting = [directory]
    while waiting:
        place = waiting.pop()
        real = place.resolve() if isinstance(place, Path) else place
        if real in seen:
            continue
        seen.add(real)
        files, directories = listed(place)
        found += files
        waiting += reversed(directories)
    return found


# --- object storage ---------------------------------------------------------------------------------------


def _objects(path: str) -> tuple[list[Place], list[DataPath]]:
    """The same for URLs: one, or several between commas; each an object, a folder of them, or a glob."""
    parts: list[Place] = []
    files: list[DataPath] = []
    for name in (part.strip() for part in path.split(",")):
        if not is_url(name):
            raise DataError(f"{path}: names both object storage and files; all data must be in one place")
        for part, tree in _matching(name):
            parts.append(part)
            files += _expand(part, tree.listed)
    if len(set(files)) != len(files):
        raise DataError(f"{path}: an object is named twice; each record must count once")
    return parts, files


def _matching(name: str) -> list[tuple[Place, _Tree]]:
    url = place(name)
    assert isinstance(url, Url)
    if not glob.has_magic(name):
        tree = _Tree(store().below(url))
        if not tree.objects:
            raise DataError(f"{name}: no object has this name or begins with it; check bucket and name")
        return [(tree.objects[0] if tree.objects[0].url == url else url, tree)]
    pattern = url.path.split("/")
    fixed = next(at for at, part in enumerate(pattern) if glob.has_magic(part))
    if fixed == 0:
        raise DataError(f"{name}: the name of the bucket cannot be a pattern; write it out")
    base = Url(url.scheme, "/".join(pattern[:fixed]))
    tree = _Tree(store().below(base))
    found = [place for place in tree.places() if _matches(place.path, url.path)]
    if not found:
        raise DataError(f"{name}: no object matches this pattern; {len(tree.objects)} are below {base}")
    return [(place, tree) for place in found]


def _matches(path: str, pattern: str) -> bool:
    """`*` stays within a name, as in a shell; hidden names need a dot in the pattern."""
    names, wanted = path.split("/"), pattern.split("/")
    if "**" in wanted:
        at = wanted.index("**")
        rest = wanted[at + 1 :]
        return any(
            _matches("/".join([*names[:at], *names[cut:]]), "/".join([*wanted[:at], *rest]))
            for cut in range(at, len(names) - len(rest) + 1)
        )
    return len(names) == len(wanted) and all(
        fnmatch.fnmatchcase(name, want) and (not name.startswith(".") or want.startswith("."))
        for name, want in zip(names, wanted, strict=True)
    )


class _Tree:
    """Objects below a name, as the folders that their names make."""

    def __init__(self, objects: Sequence[Object]) -> None:
        self.objects = objects
        self._files: dict[Url, list[DataPath]] = {}
        self._folders: dict[Url, set[Url]] = {}
        for found in objects:
            self._files.setdefault(found.parent, []).append(found)
            folder = found.parent
            while folder.path and folder not in self._folders.setdefault(folder.parent, set()):
                self._folders[folder.parent].add(folder)
                folder = folder.parent

    def listed(self, folder: Place) -> Listed:
        assert isinstance(folder, Url)
        files = [file for file in self._files.get(folder, []) if not file.name.startswith(_HIDDEN)]
        folders = [f for f in sorted(self._folders.get(folder, ())) if not f.name.startswith(_HIDDEN)]
        return files, folders

    def places(self) -> list[Url]:
        """All objects and folders."""
        folders = {folder for inside in self._folders.values() for folder in inside}
        return sorted([*self.objects, *folders], key=lambda place: place.path)


# --- formats ----------------------------------------------------------------------------------------------


def _detect(file: DataPath) -> Kind | None:
    suffix = file.suffix.lower()
    if suffix in _SUFFIXES:
        return _SUFFIXES[suffix]
    if suffix in _COMPANIONS:
        return None
    head = _head(file)
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


def _may_be(file: DataPath, detected: Kind | None, forced: Kind) -> bool:
    if detected is not None:
        return False
    return file.suffix.lower() not in _COMPANIONS or (forced is Kind.CSV and file.suffix.lower() == ".txt")


def _agree(path: str, files: Sequence[DataPath], kinds: dict[DataPath, Kind | None]) -> Kind:
    # An empty file without a suffix carries no mark; it takes the format of its neighbours.
    unknown = [file for file in files if kinds[file] is None and _size(file) > 0]
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


def _head(file: DataPath) -> bytes:
    if isinstance(file, Object):  # a block would be too much
        return store().read(file, 0, min(16, file.size))
    return head_of(file, 16)


def _size(file: DataPath) -> int:
    return file.size if isinstance(file, Object) else file.stat().st_size


def _refuse_duplicates(files: Iterable[DataPath]) -> None:
    seen: set[Place] = set()
    for file in files:
        real = file.resolve() if isinstance(file, Path) else file
        if real in seen:
            raise DataError(f"{file}: is named twice; each record must count once, so name each file once")
        seen.add(real)


def _named(parts: Sequence[Place], files: Sequence[DataPath]) -> Iterator[DataFile]:
    """Names from where the data begins, so that the same data has the same names wherever it is."""
    objects = [file for file in files if isinstance(file, Object)]
    local = [file for file in files if isinstance(file, Path)]
    if objects:
        single = len(parts) == 1 and not isinstance(parts[0], Object)
        root = str(parts[0]) if single else _common([str(file.parent) for file in objects])
        yield from (DataFile(file, str(file)[len(root) :].lstrip("/"), file.size) for file in objects)
    elif len(parts) == 1 and isinstance(parts[0], Path) and parts[0].is_dir():
        yield from (DataFile.of(file, parts[0]) for file in local)
    else:
        common = Path(os.path.commonpath([file.absolute().parent for file in local]))
        yield from (DataFile.of(file, common) for file in local)


def _common(urls: Sequence[str]) -> str:
    split = [url.split("/") for url in urls]
    same = itertools.takewhile(lambda names: len(set(names)) == 1, zip(*split, strict=False))
    return "/".join(names[0] for names in same)


def _listing(paths: Sequence[Place]) -> str:
    names = ", ".join(path.name for path in paths[:3])
    return names if len(paths) <= 3 else f"{names} and {len(paths) - 3} more"


def _known() -> str:
    return ", ".join(Kind)
