"""Image folders: one directory per class, or one directory of images without labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np

from edl_allreduce.data.files import DataFile, for_each, head_of
from edl_allreduce.data.locate import Kind
from edl_allreduce.data.source import Columns, Indices, Metadata, as_indices, fingerprint_of
from edl_allreduce.errors import BadRecord, DataError

_BEGINNINGS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"BM", b"RIFF")


class ImageFolderSource:
    """``image``: the encoded bytes of each file; ``label``: the number of its class, classes by name.

    The class is the first directory below the root, so a class may have directories of its own. Images
    are decoded by the model's ``feed``, which knows the size it wants.
    """

    def __init__(self, files: Sequence[DataFile]) -> None:
        classes = [Path(file.name).parts[0] if len(Path(file.name).parts) > 1 else "" for file in files]
        names = sorted(set(classes))
        if "" in names and len(names) > 1:
            flat = files[classes.index("")]
            raise DataError(
                f"{flat.path}: lies beside directories of classes and belongs to none; move it into the "
                "directory of its class"
            )
        self.files = tuple(files)
        self._labels: np.ndarray[tuple[int], np.dtype[np.int64]] | None = None
        dtypes = {"image": "bytes"}
        if names != [""]:
            number = {name: n for n, name in enumerate(names)}
            self._labels = np.array([number[name] for name in classes], np.int64)
            dtypes["label"] = "int64"
        class_names = tuple(names) if names != [""] else ()
        self.metadata = Metadata(Kind.IMAGES, tuple(dtypes), MappingProxyType(dtypes), class_names)
        self.fingerprint = fingerprint_of(Kind.IMAGES, len(files), ((f.name, f.size) for f in files))

    def __len__(self) -> int:
        return len(self.files)

    def read(self, indices: Indices) -> Columns:
        wanted = as_indices(indices, len(self))
        images = np.empty(wanted.size, dtype=object)
        remote = bool(self.files) and self.files[0].is_remote
        for place, image in enumerate(for_each(wanted.tolist(), self._read, remote=remote)):
            images[place] = image
        if self._labels is None:
            return {"image": images}
        return {"image": images, "label": self._labels[wanted]}

    def _read(self, index: int) -> bytes:
        file = self.files[index]
        try:
            if isinstance(file.path, Path):
                with file.path.open("rb") as stream:
                    data = stream.read(file.size + 1)
            else:
                data = head_of(file.path, file.size)
        except OSError as error:
            raise _bad(file, index, f"it cannot be read ({error.strerror})") from error
        if len(data) != file.size:
            now = len(data) if len(data) <= file.size else "more"
            raise _bad(file, index, f"it had {file.size} bytes when the data was opened, now it has {now}")
        if not data.startswith(_BEGINNINGS):
            raise _bad(file, index, f"it does not begin like an image but with {data[:8]!r}")
        return data

    def describe(self, index: int) -> str:
        (checked,) = as_indices([index], len(self)).tolist()
        return f"file {self.files[checked].name}"

    def close(self) -> None:
        """Nothing is kept open."""


def _bad(file: DataFile, index: int, what: str) -> BadRecord:
    return BadRecord(
        f"{file.path} (index {index}) is bad: {what}", index=index, path=str(file.path), offset=0
    )
