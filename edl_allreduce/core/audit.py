"""Was every record trained exactly once per epoch? Judged from what the workers wrote down.

Each worker writes, in order: `Begin` when it agreed on the state in a new ring, `Fed` before a step's
collective with the record indices that it really read, `Applied` after the update. A step counts in the
generation whose ring the next one continues; what a dead worker applied alone does not count, since
nobody took it over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Begin:
    """In this generation training goes on after `step` updates."""

    generation: int
    step: int
    rank: int
    size: int


@dataclass(frozen=True)
class Fed:
    """These records went into update `step` (counted from 0); `bad` ones were left out."""

    generation: int
    step: int
    epoch: int
    records: list[int]
    bad: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Applied:
    """Update `step` is part of this worker's model."""

    generation: int
    step: int


Entry = Begin | Fed | Applied


@dataclass(frozen=True)
class Verdict:
    """What the audit found; `clean` when `problems` is empty."""

    steps: int
    epochs: int
    """Epochs that were trained completely."""
    records: int
    """Records used, counted over all epochs."""
    bad_records: int
    generations: int
    redone: int
    """Updates that only dead workers had applied, made again by the others."""
    problems: list[str]

    @property
    def clean(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        if not self.clean:
            return f"NOT CLEAN: {len(self.problems)} problems; first: {self.problems[0]}"
        bad = f", {self.bad_records} bad records left out" if self.bad_records else ""
        return (
            f"clean: {self.steps} steps in {self.generations} rings, {self.records} records, "
            f"each exactly once per epoch ({self.epochs} complete{bad})"
        )


MAX_PROBLEMS = 50


def judge(
    workers: Mapping[str, Iterable[Entry]], *, dataset: int, finished: bool, first_step: int = 0
) -> Verdict:
    """Check the entries of all workers. `finished`: every begun epoch must be complete."""
    problems: list[str] = []
    begins: dict[int, Begin] = {}
    fed: dict[tuple[int, int], list[Fed]] = {}
    applied: dict[int, set[int]] = {}
    for worker, entries in workers.items():
        own_step = -1
        for entry in entries:
            match entry:
                case Begin(generation, step):
                    known = begins.setdefault(generation, entry)
                    if (known.step, known.size) != (step, entry.size):
                        problems.append(
                            f"ranks of generation {generation} disagree: {known.step} and {step} updates, "
                            f"{known.size} and {entry.size} members"
                        )
                    if step < own_step:
                        problems.append(
                            f"{worker} had {own_step} updates and was set back to {step} "
                            f"in generation {generation}: a step was lost"
                        )
                    own_step = step
                case Fed(generation, step):
                    fed.setdefault((generation, step), []).append(entry)
                case Applied(generation, step):
                    applied.setdefault(generation, set()).add(step)
                    own_step = step + 1

    lineage = _lineage(begins, applied, problems, first_step)
    redone = sum(len(steps) for steps in applied.values()) - len(lineage)
    used: dict[int, dict[int, int]] = {}
    bad = 0
    for step, generation in sorted(lineage.items()):
        parts = fed.get((generation, step), [])
        if len(parts) != begins[generation].size:
            problems.append(
                f"step {step} of generation {generation}: {len(parts)} of {begins[generation].size} "
                "ranks wrote down what they read"
            )
        for part in parts:
            bad += len(part.bad)
            counts = used.setdefault(part.epoch, {})
            for record in (*part.records, *part.bad):
                counts[record] = counts.get(record, 0) + 1
    complete = _count_epochs(used, dataset, finished, problems)
    return Verdict(
        steps=len(lineage),
        epochs=complete,
        records=sum(sum(c.values()) for c in used.values()) - bad,
        bad_records=bad,
        generations=len(begins),
        redone=redone,
        problems=problems[:MAX_PROBLEMS],
    )


def _lineage(
    begins: Mapping[int, Begin], applied: Mapping[int, set[int]], problems: list[str], first_step: int
) -> dict[int, int]:
    """Which generation each update of the final model was made in."""
    lineage: dict[int, int] = {}
    for generation in sorted(begins):
        start = begins[generation].step
        lineage = {step: g for step, g in lineage.items() if step < start}
        if len(lineage) + first_step < start:
            problems.append(
                f"generation {generation} begins after {start} updates, but only "
                f"{len(lineage) + first_step} are accounted for"
            )
        lineage.update(dict.fromkeys(applied.get(generation, ()), generation))
    if set(lineage) != set(range(first_step, first_step + len(lineage))):
        problems.append("the updates are not numbered without a gap")
    return lineage


def _count_epochs(
    used: Mapping[int, Mapping[int, int]], dataset: int, finished: bool, problems: list[str]
) -> int:
    complete = 0
    for epoch, counts in sorted(used.items()):
        twice = [record for record, count in counts.items() if count > 1]
        if twice:
            problems.append(
                f"epoch {epoch}: {len(twice)} records were used more than once, such as {sorted(twice)[:5]}"
            )
        outside = [record for record in counts if not 0 <= record < dataset]
        if outside:
            problems.append(f"epoch {epoch}: records {outside[:5]} are not in the data set of {dataset}")
        if len(counts) == dataset:
            complete += 1
        elif finished:
            problems.append(f"epoch {epoch}: {dataset - len(counts)} of {dataset} records were never used")
    return complete
