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
import itertools
import logging
import os
import queue
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from edl_allreduce import clock
from edl_allreduce.errors import StorageError
from edl_allreduce.storage.blocks import AUDIT, cache, requests
from edl_allreduce.storage.remote import store
from edl_allreduce.storage.url import Url
from edl_allreduce.worker.threads import supervised

log = logging.getLogger(__name__)

FLUSH_SECONDS: Final = 2.0
"""How much of a diary is lost with a machine, at most."""
RUN_SECONDS: Final = 5.0
"""How long a run waits for a number of its own; the other ranks wait for it."""
_PART: Final = re.compile(r"(worker-.+)\.(\d{6,})\.jsonl")
_RUN: Final = re.compile(r"run-(\d{1,9})\.json")
_EPOCH: Final = 1_700_000_000
"""Seconds since then have nine digits for a while, as numbers of runs do."""


def staging(url: Url, job_name: str) -> Path:
    """Where diaries of this job for this place are written on this machine."""
    key = hashlib.sha256(f"{url}\0{job_name}".encode()).hexdigest()[:32]
    directory = cache().directory / AUDIT / key
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory


def number_by_time() -> int:
    """For a run, when nobody can tell which numbers are taken."""
    return int(clock.wall()) - _EPOCH


class AuditUpload:
    """Sends what one worker wrote, in a thread of its own; `trouble` hears of it once when that fails."""

    def __init__(self, url: Url, diary: Path, trouble: Callable[[Exception], None]) -> None:
        self._url = url
        self._diary = diary
        self._trouble = trouble
        self._lock = threading.Lock()
        self._sent = 0
        self._parts = 0
        self._failed = False
        self._waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        supervised("audit-upload", self._run, lambda name, error: trouble(error))

    def flush(self) -> None:
        """Everything written so far is in the bucket when this returns, or `trouble` heard why not."""
        with self._lock:
            if self._failed:
                return
            try:
                self._send_new_lines()
                while not self._waiting.empty():
                    self._put(self._waiting.get())
            except (OSError, StorageError) as error:
                self._failed = True
                self._trouble(error)

    def put(self, name: str) -> None:
        """A small file of the directory goes with the next lines, after them. Nobody waits for that here."""
        self._waiting.put(name)

    def claim_run(self, start: bytes) -> int | None:
        """A number for a run that none has in the bucket; None when the storage does not say it in time."""
        try:
            return requests().submit(self._claim_run, start).result(RUN_SECONDS)
        except (StorageError, TimeoutError) as error:
            log.warning("%s does not tell which runs it has (%s)", self._url, error or "no answer in time")
            return None

    def _claim_run(self, start: bytes) -> int:
        names = (_RUN.fullmatch(found.name) for found in store().below(self._url))
        first = 1 + max((int(name[1]) for name in names if name), default=-1)
        if first == 0:
            self._forget_others()
        for number in itertools.count(first):
            name = f"run-{number}.json"
            try:
                with self._diary.with_name(name).open("xb") as file:
                    file.write(start)
            except FileExistsError:
                continue
            self._put(name)
            return number
        raise AssertionError("numbers never end")

    def _forget_others(self) -> None:
        """The audit begins: what dead workers left on this machine is of one that somebody removed."""
        for run in self._diary.parent.glob("run-*.json"):
            run.unlink(missing_ok=True)
        for diary in self._diary.parent.glob("worker-*.jsonl"):
            with suppress(OSError):
                if not is_written(diary):
                    diary.unlink()

    def _run(self) -> None:
        while not self._failed:
            clock.sleep(FLUSH_SECONDS)
            self.flush()

    def _put(self, name: str) -> None:
        store().upload(self._diary.with_name(name), self._url / name)

    def _send_new_lines(self) -> None:
        data = _whole_lines(self._diary, self._sent)
        if data:
            store().write(_part(self._url, self._diary.stem, self._parts), data)
            self._sent += len(data)
            self._parts += 1


def is_written(diary: Path) -> bool:
    """Whoever writes a diary holds a lock on it, which ends with the process. OSError: no locks there."""
    with diary.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def send_left_over(url: Url, folder: Path) -> None:
    """What workers of this machine could not send any more because they were killed."""
    for diary in sorted(folder.glob("worker-*.jsonl")):
        if is_written(diary):
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
    there = sorted((found for found in store().below(url) if found.parent == url), key=_order)
    for _ in requests().map(lambda found: store().download(found, target / found.name), there):
        pass
    for stem, number, name in (_order(found) for found in there):
        if not stem:
            continue
        expected = numbers.get(stem, 0)
        if number != expected:
            problems.append(f"{stem}: part {expected} of its diary is not in {url}")
        numbers[stem] = number + 1
        part = target / name
        with (target / f"{stem}.jsonl").open("ab") as diary:
            diary.write(part.read_bytes())
        part.unlink()
    return problems


def _order(found: Url) -> tuple[str, int, str]:
    """Parts of one diary by their numbers."""
    part = _PART.fullmatch(found.name)
    return (part[1], int(part[2]), found.name) if part else ("", 0, found.name)


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
