"""The audit's files, read a second time: shares no line with the product, only the format on disk.

A diary is one file per worker process, one JSON object per line, in the order in which things happened:
`begin` (this ring goes on after `step` updates), `fed` (these records go into update `step`), `applied`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

Ring = tuple[int, int]
"""(run, generation): a later one supersedes an earlier one."""
Harmed = Mapping[tuple[str, Ring], int]
"""Diaries of workers that a fault silenced, in which ring, and how many updates they had at the end of it."""


@dataclass
class Diary:
    """What one worker process wrote, as far as it was read."""

    name: str
    rings: dict[Ring, tuple[int, int]] = field(default_factory=dict)
    """Where each ring that it was in began, and of how many members."""
    fed: dict[tuple[Ring, int], tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    """Epoch and records of each update that it began."""
    applied: list[tuple[Ring, int]] = field(default_factory=list)
    ring: Ring | None = None
    """The last one."""
    step: int = 0
    """Updates in its model."""
    problems: list[str] = field(default_factory=list)
    _rest: bytes = b""

    def read(self, data: bytes) -> list[tuple[Ring, int]]:
        """Take in what was written since; returns the updates that were applied meanwhile."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        before = len(self.applied)
        for line in lines:
            try:
                self._entry(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                self.problems.append(f"{self.name}: {line[:80]!r} says nothing ({error})")
        return self.applied[before:]

    def _entry(self, entry: dict[str, dict[str, int]]) -> None:
        ((kind, facts),) = entry.items()
        if kind == "begin":
            self.ring = (facts.get("run", 0), facts["generation"])
            if facts["step"] < self.step:
                self.problems.append(f"{self.name}: {self.step} updates, then set back to {facts['step']}")
            self.rings[self.ring] = facts["step"], facts["size"]
            self.step = facts["step"]
            return
        if self.ring is None or self.ring[1] != facts["generation"]:
            self.problems.append(
                f"{self.name}: {kind} in generation {facts['generation']}, which it never began"
            )
            return
        if kind == "fed":
            records: list[int] = facts["records"]  # type: ignore[assignment]
            key = self.ring, facts["step"]
            if key in self.fed:
                self.problems.append(f"{self.name}: update {facts['step']} was fed twice in {self.ring}")
            self.fed[key] = facts["epoch"], tuple(records)
        elif kind == "applied":
            if facts["step"] != self.step:
                self.problems.append(f"{self.name}: update {facts['step']} after {self.step} updates")
            self.applied.append((self.ring, facts["step"]))
            self.step = facts["step"] + 1
        else:
            raise KeyError(kind)


def read(directory: Path) -> list[Diary]:
    """All diaries of a job that is over."""
    found = []
    for path in sorted(directory.glob("worker-*.jsonl")):
        diary = Diary(path.name)
        diary.read(path.read_bytes())
        found.append(diary)
    return found


@dataclass
class History:
    """The updates of the final model, one after the other."""

    batches: list[list[int]] = field(default_factory=list)
    """The records of each."""
    made_again: int = 0
    """Updates that were made and are no part of the final model."""
    alone: int = 0
    """Those of them that only silenced workers had applied: one per ring at most, the members wait for each
    other; and in the same run, so no model was lost."""
    rings: int = 0
    runs: int = 0
    problems: list[str] = field(default_factory=list)


def history(diaries: list[Diary], records: int, steps: int, harmed: Harmed) -> History:
    """What the final model was made of. Every update once, every record once per epoch, or a problem."""
    told = History(problems=[problem for diary in diaries for problem in diary.problems])
    begins: dict[Ring, tuple[int, int]] = {}
    for diary in diaries:
        for ring, begin in diary.rings.items():
            if begins.setdefault(ring, begin) != begin:
                told.problems.append(f"ring {ring}: members began after {begins[ring]} and {begin}")
    applied: dict[Ring, dict[int, list[str]]] = {}
    for diary in diaries:
        for ring, step in diary.applied:
            applied.setdefault(ring, {}).setdefault(step, []).append(diary.name)
    line: list[Ring] = []
    for ring in sorted(begins):
        first = begins[ring][0]
        if first > len(line):
            told.problems.append(f"ring {ring} began after {first} updates; {len(line)} are known")
        lost, line = line[first:], line[:first]
        told.made_again += len(lost)
        for before in lost[-1:]:
            step = first + len(lost) - 1
            silenced = all(step < harmed.get((name, before), 0) for name in applied[before][step])
            told.alone += before[0] == ring[0] and silenced
        for step in sorted(applied.get(ring, ())):
            if step != len(line):
                told.problems.append(f"ring {ring}: update {step} follows {len(line)} updates")
                break
            line.append(ring)
    told.rings, told.runs = len(begins), len({run for run, _ in begins})
    if len(line) != steps:
        told.problems.append(f"{len(line)} updates, wanted {steps}")
    _records(told, diaries, begins, line, records)
    return told


def _records(
    told: History, diaries: list[Diary], begins: dict[Ring, tuple[int, int]], line: list[Ring], records: int
) -> None:
    used: dict[int, list[int]] = {}
    for step, ring in enumerate(line):
        parts = [diary.fed[ring, step] for diary in diaries if (ring, step) in diary.fed]
        if len(parts) != begins[ring][1]:
            told.problems.append(
                f"update {step}: {len(parts)} of {begins[ring][1]} members say what they read"
            )
        epochs = {epoch for epoch, _ in parts}
        batch = [record for _, part in parts for record in part]
        if len(epochs) == 1:
            used.setdefault(epochs.pop(), []).extend(batch)
        else:
            told.problems.append(f"update {step} is of the epochs {sorted(epochs)}")
        told.batches.append(batch)
    for epoch, seen in sorted(used.items()):
        if sorted(seen) != list(range(records)):
            missing, twice = set(range(records)) - set(seen), len(seen) - len(set(seen))
            told.problems.append(f"epoch {epoch}: {len(missing)} records never used, {twice} used again")
