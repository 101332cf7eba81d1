"""Files and directories that appear under their names only when they are whole.

What is not whole yet has a hidden name that says who writes it, `.model.HOST-PID.CHANCE.tmp.keras`: a writer
that is killed leaves nothing that anybody takes for the real thing, and `clear_drafts` finds what it left.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self

_PRIVATE: Final = 0o600
_PUBLIC: Final = 0o666  # what the umask leaves of it
_WRITER: Final = re.compile(r"(.+)-(\d+)\.[0-9a-f]+\.tmp")


def draft_of(path: Path) -> Path:
    """A hidden name next to `path` for what will be `path`; the suffix stays, since some writers look at it.

    In containers of different machines all processes have the number 1, so the host is part of it.
    """
    return path.with_name(
        f".{path.stem}.{socket.gethostname()}-{os.getpid()}.{secrets.token_hex(4)}.tmp{path.suffix}"
    )


def clear_drafts(path: Path, *, alone: bool = False) -> None:
    """Clear away what writers of `path` left who died.

    Others may still write, unless the caller is the only one who can: of them only those of this machine
    whose process is gone are known to be dead.
    """
    before, after = f".{path.stem}.", path.suffix
    for left in path.parent.iterdir() if path.parent.is_dir() else ():
        if not (left.name.startswith(before) and left.name.endswith(after)):
            continue
        writer = _WRITER.fullmatch(left.name[len(before) : len(left.name) - len(after)])
        if writer is not None and (alone or _is_dead(*writer.groups())):
            remove(left)


def _is_dead(host: str, pid: str) -> bool:
    return host == socket.gethostname() and not Path(f"/proc/{pid}").exists()


def remove(path: Path) -> None:
    """A file or a directory with all that is in it; trouble is no reason to stop."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def write(path: Path, content: bytes, *, durable: bool = False, private: bool = False) -> None:
    """Replace `path` as a whole."""
    with AtomicFile(path, durable=durable, private=private) as file:
        file.stream.write(content)


@contextmanager
def drafted(path: Path) -> Iterator[Path]:
    """For writers that want a path: what they write to the one given becomes `path` when the block ends well.

    It survives a power cut, as whatever takes long to make again.
    """
    draft = draft_of(path)
    try:
        yield draft
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(path)
        sync_directory(path.parent)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """A directory to fill that appears as `target` only when the block ends well; one that is there goes."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = draft_of(target)
    fresh.mkdir()
    try:
        yield fresh
        if target.exists():
            old = draft_of(target)
            target.rename(old)
            fresh.rename(target)
            remove(old)
        else:
            fresh.rename(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def sync_directory(path: Path) -> None:
    """New names in it survive a power cut, where the file system knows how."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class AtomicFile:
    """A file that appears under its name only when it is whole.

    A durable one survives a power cut, too: for what takes long to make again. A private one is its owner's.
    """

    def __init__(self, path: str | os.PathLike[str], *, durable: bool = True, private: bool = False) -> None:
        self.path = Path(path)
        self._durable = durable
        self._draft = draft_of(self.path)
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
        descriptor = os.open(self._draft, flags, _PRIVATE if private else _PUBLIC)
        self.stream: BinaryIO = os.fdopen(descriptor, "wb")

    def commit(self) -> None:
        if self.stream.closed:
            return
        try:
            self.stream.flush()
            if self._durable:
                os.fsync(self.stream.fileno())
            self.stream.close()
            self._draft.replace(self.path)
        except OSError:
            self.abandon()
            raise
        if self._durable:
            sync_directory(self.path.parent)

    def abandon(self) -> None:
        """What failed must not keep the disk full."""
        with suppress(OSError):  # a full disk takes the rest of the buffer no more than what was before
            self.stream.close()
        self._draft.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.commit()
        else:
            self.abandon()
