"""The audit of a job in object storage, which nobody can append to.

Workers write their diaries into a directory of this machine, as they would anywhere; every so often the new
lines go to the bucket as an object of their own:

    <audit_dir>/worker-0-UID.000000.jsonl, worker-0-UID.000001.jsonl, …    parts of one diary
                run-0.json, job.json                                        as on a disk

What a killed worker had not sent yet is still in its directory: whoever shares the machine sends it. What is
lost with a machine is missing in the bucket, and the audit says so.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from edl_allreduce import clock
from edl_allreduce.errors import StorageError
from edl_allreduce.storage.blocks import AUDIT, cache
from edl_allreduce.storage.remote import store
from edl_allreduce.storage.url import Url
from edl_allreduce.worker.threads import supervised

log = logging.getLogger(__name__)

FLUSH_SECONDS: Final = 2.0
"""How much of a diary is lost with a machine, at most."""
_PART: Final = re.compile(r"(worker-.+)\.(\d{6})\.jsonl")
_RUN: Final = re.compile(r"run-(\d{1,9})\.json")


def staging(url: Url) -> Path:
    """Where diaries for this place are written on this machine."""
    directory = cache().directory / AUDIT / hashlib.sha256(str(url).encode()).hexdigest()[:32]
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory


class AuditUpload:
    """Sends what one worker wrote; `trouble` hears of it once when that fails."""

    def __init__(self, url: Url, diary: Path, trouble: Callable[[Exception], None]) -> None:
        self._url = url
        self._diary = diary
        self._trouble = trouble
        self._lock = threading.Lock()
        self._sent = 0
        self._parts = 0
        self._failed = False
        supervised("audit-upload", self._run, lambda name, error: trouble(error))

    def flush(self) -> None:
        """Everything written so far is in the bucket when this returns, or `trouble` heard why not."""
        with self._lock:
            if self._failed:
                return
            try:
                self._send_new_lines()
            except StorageError as error:
                self._failed = True
                self._trouble(error)

    def put(self, name: str) -> None:
        """A small file of the directory, as it is."""
        store().upload(self._diary.with_name(name), self._url / name)

    def next_run(self) -> int:
        """A number for a run that none has in the bucket."""
        names = (_RUN.fullmatch(found.name) for found in store().below(self._url))
        return 1 + max((int(name[1]) for name in names if name), default=-1)

    def _run(self) -> None:
        while not self._failed:
            clock.sleep(FLUSH_SECONDS)
            self.flush()

    def _send_new_lines(self) -> None:
        data = _whole_lines(self._diary, self._sent)
        if data:
            store().write(_part(self._url, self._diary.stem, self._parts), data)
            self._sent += len(data)
            self._parts += 1


def send_left_over(url: Url) -> None:
    """What workers of this machine could not send any more because they were killed."""
    for diary in sorted(staging(url).glob("worker-*.jsonl")):
        with diary.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # it lives, and sends by itself
            parts = [found for found in store().below(url) if _stem(found.name) == diary.stem]
            data = _whole_lines(diary, sum(found.size for found in parts))
            if data:
                store().write(_part(url, diary.stem, len(parts)), data)
        with suppress(OSError):
            diary.unlink()


def fetch(url: Url, target: Path) -> list[str]:
    """The audit as a directory; returns what is missing of it, as far as the names tell."""
    problems: list[str] = []
    numbers: dict[str, int] = {}
    for found in sorted(store().below(url)):
        if found.parent != url:
            continue
        stem = _stem(found.name)
        if not stem:
            store().download(found, target / found.name)
            continue
        expected, number = numbers.get(stem, 0), int(found.name.split(".")[-2])
        if number != expected:
            problems.append(f"{stem}: part {expected} of its diary is not in {url}")
        numbers[stem] = number + 1
        with (target / f"{stem}.jsonl").open("ab") as diary:
            diary.write(store().read(found, 0, found.size))
    return problems


def _stem(name: str) -> str:
    part = _PART.fullmatch(name)
    return part[1] if part else ""


def _part(url: Url, stem: str, number: int) -> Url:
    return url / f"{stem}.{number:06d}.jsonl"


def _whole_lines(path: Path, start: int) -> bytes:
    """From there on; what ends without a line break is still being written, or never will be."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.pread(descriptor, max(0, os.fstat(descriptor).st_size - start), start)
    finally:
        os.close(descriptor)
    return data[: data.rfind(b"\n") + 1]
