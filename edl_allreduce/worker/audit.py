"""The worker's diary for the audit: one JSON line per entry, written before the thing that it vouches for.

A line that `write` accepted survives the death of the process, so nothing is buffered in the process.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from edl_allreduce.core.audit import Applied, Begin, Entry, Fed, Start, Verdict, judge
from edl_allreduce.errors import DataError

MANIFEST = "job.json"


class Manifest(msgspec.Struct, frozen=True):
    """What the audit must know about the job."""

    dataset: int
    """Records of the data set."""
    finished: bool = False
    max_step: int = 0


class _Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry on disk; exactly one field is set."""

    begin: Begin | None = None
    fed: Fed | None = None
    applied: Applied | None = None


_decode = msgspec.json.Decoder(_Line).decode


class Diary:
    """Where one worker writes. Without a directory nothing is written."""

    def __init__(self, directory: str, worker_id: int, uid: str) -> None:
        self._directory = directory
        self._descriptor = -1
        if directory:
            path = Path(directory) / f"worker-{worker_id}-{uid}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)

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
        os.write(self._descriptor, msgspec.json.encode(line) + b"\n")

    def open_run(self, step: int, position: int) -> int:
        """A number for a new run of the job, never given before in this directory."""
        if not self._directory:
            return 0
        for number in itertools.count():
            try:
                with (Path(self._directory) / f"run-{number}.json").open("xb") as file:
                    file.write(msgspec.json.encode(Start(step, position)))
            except FileExistsError:
                continue
            return number
        raise AssertionError("numbers do not end")


def write_manifest(directory: str, manifest: Manifest) -> None:
    """Written by the master, atomically: at the start, and again when the job is over."""
    path = Path(directory) / MANIFEST
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(msgspec.json.encode(manifest))
    temporary.replace(path)


def _entries(path: Path) -> Iterator[Entry]:
    for raw in path.read_bytes().splitlines(keepends=True):
        if not raw.endswith(b"\n"):
            return  # the process died in the middle of this line
        line = _decode(raw)
        entry = line.begin or line.fed or line.applied
        if entry is not None:
            yield entry


def audit(directory: str) -> Verdict:
    """Judge the diaries in a directory."""
    folder = Path(directory)
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError) as error:
        raise DataError(
            f"{folder} holds no audit: {MANIFEST} cannot be read ({error}). "
            "Name the directory that was given to the job with --audit_dir."
        ) from error
    workers = {path.stem: _entries(path) for path in sorted(folder.glob("worker-*.jsonl"))}
    starts = {
        int(path.stem.removeprefix("run-")): msgspec.json.decode(text, type=Start)
        for path in folder.glob("run-*.json")
        if (text := path.read_bytes())  # empty: nobody lived to train in that run
    }
    whole = manifest.finished and not manifest.max_step
    return judge(workers, dataset=manifest.dataset, finished=whole, starts=starts)
