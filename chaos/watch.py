"""What is seen of a job while it runs: diaries as they grow, events, how large its processes are."""

from __future__ import annotations

import json
from pathlib import Path

from chaos import processes
from chaos.diaries import Diary, Ring
from chaos.job import Job
from chaos.verdict import Sample
from edl_allreduce import clock

BLAME = ("failure", "short", "relaunch")
"""Kinds of events that tell of workers that could not begin, or crashed."""


class Watch:
    """One look after the other."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.diaries: dict[str, Diary] = {}
        self.sightings: list[tuple[int, str, Ring]] = []
        self.samples: list[Sample] = []
        self.step = 0
        """Updates that somebody made, the most there are."""
        self.progress = 0
        """Grows with every update that anybody makes."""
        self.kinds: list[str] = []
        """Of the events so far."""
        self.blame: list[tuple[float, str]] = []
        """What was told of workers that crashed, as the job sees it, and when."""
        self.harmed: dict[tuple[str, Ring], int] = {}
        """Who was silenced in which ring, and how many updates it had then."""
        self._names: dict[int, str] = {}
        self._places: dict[Path, int] = {}
        self._look = 0
        self._rest = b""

    def look(self) -> None:
        self._look += 1
        for path in sorted(self.job.audit.glob("worker-*.jsonl")):
            diary = self.diaries.setdefault(path.name, Diary(path.name))
            fresh = diary.read(self._more(path))
            self.sightings += [(self._look, path.name, ring) for ring in dict.fromkeys(r for r, _ in fresh)]
            self.progress += len(fresh)
            self.step = max(self.step, diary.step)
        *lines, self._rest = (self._rest + self._more(self.job.events)).split(b"\n")
        for line in lines:
            try:
                event = json.loads(line)
                kind, text = str(event["kind"]), str(event["text"])
            except (ValueError, KeyError, TypeError):
                continue  # a full disk may have cut it
            self.kinds.append(kind)
            if kind in BLAME:
                self.blame.append((clock.now(), text))

    def _more(self, path: Path) -> bytes:
        try:
            with path.open("rb") as file:
                if path.stat().st_size < self._places.get(path, 0):
                    self._places[path] = 0  # begun anew
                file.seek(self._places.get(path, 0))
                found = file.read()
                self._places[path] = file.tell()
                return found
        except OSError:
            return b""

    def harm(self, pid: int) -> None:
        """A fault silences it now; its diary is found as long as it lives, and remembered."""
        own = self._names.get(pid) or _diary_of(pid)
        if own:
            self._names[pid] = own
        diary = self.diaries.get(own)
        if diary is not None and diary.ring is not None:
            self.harmed[own, diary.ring] = diary.step

    def measure(self) -> None:
        """How large the master is, and the workers that train: who still prepares has to grow."""
        master = self.job.master
        for pid in [*self.seated(self.job.worker_pids()), *([master.pid] if master else [])]:
            sample = processes.sample(pid)
            if sample is not None:
                self.samples.append(sample)

    def seated(self, living: list[int]) -> list[int]:
        """Of the living, those in the newest ring: they hold the model."""
        rings: dict[int, Ring] = {}
        for pid in living:
            diary = self.diaries.get(_diary_of(pid))
            if diary is not None and diary.ring is not None:
                rings[pid] = diary.ring
        newest = max(rings.values(), default=None)
        return [pid for pid in living if rings.get(pid) == newest] if newest else []


def _diary_of(pid: int) -> str:
    """The name of the diary that it has open; empty when there is none yet, or it is gone."""
    return next((Path(name).name for name in processes.open_files(pid) if name.endswith(".jsonl")), "")
