"""Case after case, each in namespaces of its own; what came of them is kept, so a campaign can be resumed."""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chaos import memory
from chaos.faults import Case, Fault, to_data
from chaos.job import ROOT
from chaos.one import RESULT
from chaos.shrink import shrink

RESULTS = "results.jsonl"
INSIDE = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
CRASHED = "the driver itself failed"
Key = tuple[int, str, int]
"""Of a case: its seed, the job with its style, the number of faults in its schedule."""


def key_of(case: Case) -> Key:
    return _key(case.seed, to_data(case)["shape"], len(case.faults))


def _key(seed: int, shape: dict[str, Any], faults: int) -> Key:
    return seed, json.dumps(shape, sort_keys=True), faults


def crashed(result: dict[str, Any]) -> bool:
    """Whether nothing is known of the case itself."""
    return any(problem.startswith(CRASHED) for problem in result["problems"])


@dataclass(frozen=True)
class Outcome:
    """What one case came to."""

    case: Case
    result: dict[str, Any]

    @property
    def problems(self) -> list[str]:
        return list(self.result["problems"])

    @property
    def done(self) -> int:
        """Faults that met somebody."""
        return sum(bool(what) for _, what in self.result["faults"])

    def line(self) -> str:
        shape, found = self.case.shape, self.result
        verdict = "; ".join(self.problems) or "nothing lost"
        return (
            f"seed {self.case.seed}: {shape.style}, {shape.workers} workers, "
            f"{'one spared' if shape.careful else 'nobody spared'}: "
            f"{self.done} faults in {found['seconds']:.0f} s, {found['steps']} steps, "
            f"{found['rings']} rings, {found['runs']} runs, {found['made_again']} steps made again, "
            f"weights {found['apart']:.1e} apart: {verdict}"
        )


class Campaign:
    """Its directory has one folder per case that failed, and a line per case."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def known(self) -> dict[Key, dict[str, Any]]:
        """The cases that were run already, each with what came of it the last time."""
        path = self.directory / RESULTS
        lines = path.read_text().splitlines() if path.exists() else []
        entries = [json.loads(line) for line in lines]
        return {_key(e["seed"], e["shape"], e.get("scheduled", 0)): e for e in entries}

    def failed(self) -> list[int]:
        """Seeds of cases that failed the last time that they were run, by whatever command."""
        return [result["seed"] for result in self.known().values() if result["problems"]]

    def settled(self, case: Case) -> bool:
        """Whether it is known what comes of it: a crash of the driver says nothing."""
        result = self.known().get(key_of(case))
        return result is not None and not crashed(result)

    def run(self, case: Case, seconds: float = math.inf) -> Outcome:
        """One case; its files stay only if something is wrong. No fault is done after so many seconds."""
        outcome = self.attempt(case, f"seed-{case.seed}", seconds)
        facts = {"seed": case.seed, "shape": to_data(case)["shape"], "scheduled": len(case.faults)}
        entry = {**facts, **outcome.result}
        with (self.directory / RESULTS).open("a") as file:
            file.write(json.dumps(entry) + "\n")
        return outcome

    def attempt(self, case: Case, name: str, seconds: float = math.inf) -> Outcome:
        place = self.directory / name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        (place / "case.json").write_text(json.dumps(to_data(case), indent=1))
        user = () if os.geteuid() == 0 else ("--map-root-user",)
        groups = f"chaos-{secrets.token_hex(6)}-"
        words = [str(place / "case.json"), str(place), str(seconds), groups]
        command = [*INSIDE, *user, sys.executable, "-m", "chaos.one", *words]
        with (place / "driver.out").open("wb") as out:
            subprocess.run(command, cwd=ROOT, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
        for group in memory.clear(groups):
            print(f"the control group {group} could not be removed")
        try:
            result = json.loads((place / RESULT).read_text())
        except (OSError, ValueError):
            last = (place / "driver.out").read_text(errors="replace").splitlines()[-1:]
            result = _nothing(f"{CRASHED}: {' '.join(last)}")
        if not result["problems"]:
            shutil.rmtree(place)
        return Outcome(case, result)

    def shrunk(self, outcome: Outcome, tries: int) -> Case:
        """The fewest faults with which the same case still fails."""
        case = outcome.case
        number = 0

        def fails(faults: Sequence[Fault]) -> bool:
            nonlocal number
            number += 1
            part = replace(case, faults=tuple(faults))
            return bool(self.attempt(part, f"seed-{case.seed}-part-{number}").problems)

        small = replace(case, faults=tuple(shrink(case.faults, fails, tries)))
        (self.directory / f"seed-{case.seed}-shrunk.json").write_text(json.dumps(to_data(small), indent=1))
        return small


def _nothing(problem: str) -> dict[str, Any]:
    return {
        "problems": [problem], "faults": [], "seconds": 0.0, "steps": 0, "rings": 0, "runs": 0,
        "made_again": 0, "apart": 0.0, "events": 0,
    }  # fmt: skip


def table(results: Sequence[dict[str, Any]]) -> list[str]:
    """Markdown: each kind of fault, how often it was done, and in how many jobs."""
    counts: dict[str, list[int]] = {}
    for result in results:
        seen = set()
        for words, what in result["faults"]:
            kind = words.partition(",")[0].partition(" at ")[0]
            if what:
                counts.setdefault(kind, [0, 0])[0] += 1
                seen.add(kind)
        for kind in seen:
            counts[kind][1] += 1
    rows = [f"| {kind} | {number} | {jobs} |" for kind, (number, jobs) in sorted(counts.items())]
    return ["| fault | times | jobs |", "|---|---|---|", *rows]
