"""The worker's diary for the audit: one JSON line per entry, written before the thing that it vouches for.

A line that `write` accepted survives the death of the process, so nothing is buffered in the process.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from edl_allreduce import clock, files
from edl_allreduce.core import protocol
from edl_allreduce.core.audit import (
    MAX_PROBLEMS,
    Applied,
    Begin,
    Entry,
    Fed,
    Manifest,
    Start,
    Verdict,
    judge,
)
from edl_allreduce.errors import DataError, ObjectMissing, UsageError
from edl_allreduce.reading import SMALL_FILE, UNDECODABLE, small_file
from edl_allreduce.storage.remote import store
from edl_allreduce.storage.url import Url, place
from edl_allreduce.worker import disk
from edl_allreduce.worker.loop.audit_upload import (
    FLUSH_SECONDS,
    AuditUpload,
    fetch,
    is_written,
    number_by_time,
    send_left_over,
    staging,
)

log = logging.getLogger(__name__)

MANIFEST = "job.json"


class _Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry on disk; exactly one field is set."""

    begin: Begin | None = None
    fed: Fed | None = None
    applied: Applied | None = None


_decode = msgspec.json.Decoder(_Line).decode


class Diary:
    """Where one worker writes. Without a directory nothing is written."""

    def __init__(
        self,
        directory: str,
        worker_id: int,
        uid: str,
        send: Callable[[protocol.Note], None] = lambda note: None,
        job_name: str = "",
    ) -> None:
        self._shown = directory
        self._send = send
        self._descriptor = -1
        self._upload: AuditUpload | None = None
        self._directory = Path()
        if directory:
            where = place(directory)
            self._directory = staging(where, job_name) if isinstance(where, Url) else where
            path = self._directory / f"worker-{worker_id}-{uid}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
            with suppress(OSError):  # not every file system has locks; then an audit cannot know
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if isinstance(where, Url):
                self._upload = AuditUpload(where, path, self._end)

    def write(self, entry: Entry) -> None:
        if self._descriptor < 0:
            return
        match entry:
            case Begin():
                line = _Line(begin=entry)
            case Fed():
                line = _Line(fed=entry)
            case Applied():
                line = _Line(applied=entry)
        text = msgspec.json.encode(line) + b"\n"
        with self._trouble():
            if os.write(self._descriptor, text) != len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    @contextmanager
    def _trouble(self) -> Iterator[None]:
        """A disk that fails ends the diary, not the training; the audit will find what is missing."""
        try:
            yield
        except OSError as error:
            if self._descriptor >= 0:
                os.close(self._descriptor)
            self._descriptor = -1
            self._end(error)

    def _end(self, error: Exception) -> None:
        text = (
            f"the audit cannot be written to {self._shown} any more: {disk.words(error)}; "
            "what comes now is not proved"
        )
        log.error("%s", text)
        self._send(protocol.Note(protocol.NoteKind.WARNING, text, once=True))

    def flush(self) -> None:
        """Where it is sent away: everything written so far has arrived."""
        if self._upload is not None:
            self._upload.flush()

    def open_run(self, step: int, position: int) -> int:
        """A number for a new run of the job, never given before in this directory."""
        if not self._shown:
            return 0
        start = msgspec.json.encode(Start(step, position))
        number = number_by_time()
        with self._trouble():
            if self._upload is None:
                return self._claim_run(0, start)
            claimed = self._upload.claim_run(start)
            if claimed is not None:
                return claimed
            number = self._claim_run(number, start)
            self._upload.put(f"run-{number}.json")
        return number

    def _claim_run(self, first: int, start: bytes) -> int:
        for number in itertools.count(first):
            try:
                with (self._directory / f"run-{number}.json").open("xb") as file:
                    file.write(start)
            except FileExistsError:
                continue
            return number
        raise AssertionError("numbers never end")

    def write_manifest(self, manifest: Manifest) -> None:
        with self._trouble():
            write_manifest(str(self._directory), manifest)
            if self._upload is not None:
                self._upload.put(MANIFEST)


def write_manifest(directory: str, manifest: Manifest) -> None:
    """Written by rank 0, atomically: at the start of each ring, and again when the job is over."""
    path = Path(directory) / MANIFEST
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, msgspec.json.encode(manifest))


def _entries(path: Path, unreadable: list[str]) -> Iterator[Entry]:
    """What the worker wrote; lines that say nothing are told in `unreadable`."""
    with path.open("rb") as lines:
        for number, raw in enumerate(lines, start=1):
            if not raw.endswith(b"\n"):
                return  # the process died in the middle of this line
            try:
                line = _decode(raw)
            except UNDECODABLE as error:
                if len(unreadable) < MAX_PROBLEMS:
                    unreadable.append(f"{path.name}: line {number} cannot be read ({error})")
                continue
            entry = line.begin or line.fed or line.applied
            if entry is not None:
                yield entry


def refuse_other_job(directory: str, job_name: str) -> None:
    """The diaries of two jobs cannot be told apart: each needs a directory of its own."""
    where = place(directory)
    try:
        there = (_fetch_manifest(where) if isinstance(where, Url) else read_manifest(where)).job_name
    except (OSError, ObjectMissing, *UNDECODABLE):
        return
    if there and there != job_name:
        raise UsageError(
            f"--audit_dir={directory} holds the audit of the job {there}, this is "
            f"{job_name or 'a job without a name'}. Give this job a directory of its own, or remove that one."
        )


def read_manifest(folder: Path) -> Manifest:
    return msgspec.json.decode(small_file(folder / MANIFEST), type=Manifest)


def _fetch_manifest(url: Url) -> Manifest:
    return msgspec.json.decode(store().whole(url / MANIFEST, SMALL_FILE), type=Manifest)


def _refuse_running(folder: Path, shown: str) -> None:
    for path in sorted(folder.glob("worker-*.jsonl")):
        try:
            if is_written(path):
                raise UsageError(
                    f"the job of {shown} still runs: {path.stem} writes there. Audit it when it is over."
                )
        except OSError:
            return  # no locks here: nobody can know


def audit(directory: str) -> Verdict:
    """Judge the diaries in a directory, or in object storage."""
    where = place(directory)
    if isinstance(where, Path):
        return _audit(where, directory, [])
    with suppress(ObjectMissing, *UNDECODABLE):  # the audit will say it
        manifest = _fetch_manifest(where)
        folder = staging(where, manifest.job_name)
        if not manifest.finished:
            _refuse_running(folder, directory)
            _refuse_growing(where)
        send_left_over(where, folder)
    with TemporaryDirectory(prefix="audit-") as scratch:
        missing = fetch(where, Path(scratch))
        return _audit(Path(scratch), directory, missing)


def _refuse_growing(url: Url) -> None:
    """Locks of other machines cannot be seen from here, but that something arrives can."""
    before = store().below(url)
    clock.sleep(2 * FLUSH_SECONDS)
    if store().below(url) != before:
        raise UsageError(f"the job of {url} still runs: its workers send there. Audit it when it is over.")


def _audit(folder: Path, shown: str, unreadable: list[str]) -> Verdict:
    try:
        manifest = read_manifest(folder)
    except (OSError, *UNDECODABLE) as error:
        raise DataError(
            f"{shown} holds no audit: {MANIFEST} cannot be read ({error}). "
            "Name the directory that was given to the job with --audit_dir."
        ) from error
    if manifest.dataset < 1:
        raise DataError(
            f"{shown} holds no audit: {MANIFEST} speaks of a data set of {manifest.dataset} records. "
            "Name the directory that was given to the job with --audit_dir."
        )
    if not manifest.finished:
        _refuse_running(folder, shown)
    diaries = [path for path in sorted(folder.glob("worker-*.jsonl")) if path.is_file()]
    workers = {path.stem: _entries(path, unreadable) for path in diaries}
    starts = _starts(folder, unreadable)
    whole = manifest.finished and not manifest.max_step
    verdict = judge(
        workers,
        dataset=manifest.dataset,
        finished=whole,
        starts=starts,
        lost_records=manifest.lost_records,
    )
    problems = [*unreadable, *verdict.problems][:MAX_PROBLEMS]
    return replace(verdict, problems=problems, fingerprint=manifest.fingerprint)


def _starts(folder: Path, unreadable: list[str]) -> dict[int, Start]:
    """Where each run of the job began."""
    found: dict[int, Start] = {}
    for path in sorted(folder.glob("run-*.json")):
        number = path.stem.removeprefix("run-")
        if not (number.isascii() and number.isdecimal() and len(number) < 10):
            continue  # not ours
        try:
            text = small_file(path)
            if text:  # else nobody lived to train in that run
                found[int(number)] = msgspec.json.decode(text, type=Start)
        except (OSError, *UNDECODABLE) as error:
            unreadable.append(f"{path.name} cannot be read ({error})")
    return found
