"""Was every record trained exactly once per epoch? Judged from what the workers wrote down.

Each worker writes, in order: `Begin` when it agreed on the state in a new ring, `Fed` before a step's
collective with the record indices that it really read, `Applied` after the update. A step counts in the
generation whose ring the next one continues; what a dead worker applied alone does not count, since
nobody took it over.

When nobody holds the job's state any more, a new *run* begins from a checkpoint. Updates after that
checkpoint are made again by design; what counts is the final lineage.
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
    run: int = 0
    given_up: int = 0
    """Updates of this worker alone, which nobody could compare: it makes them again with the others."""


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
class Manifest:
    """What the audit must know about the job."""

    dataset: int
    """Records of the data set."""
    finished: bool = False
    max_step: int = 0
    job_name: str = ""
    lost_records: int = 0
    """In parts of the data that cannot be read, besides those counted as bad: an estimate."""
    fingerprint: str = ""
    """Of the weights at the end of a reproducible job."""


@dataclass(frozen=True)
class Start:
    """Where a run begins: at a checkpoint, or at the very beginning."""

    step: int = 0
    position: int = 0
    """Records used before, counted over all epochs."""


@dataclass(frozen=True)
class Verdict:
    """What the audit found; `clean` when `problems` is empty."""

    steps: int
    epochs: int
    """Epochs that were trained completely."""
    records: int
    """Records used, counted over all epochs."""
    bad_records: int
    """Different records that were left out because they could not be read."""
    generations: int
    redone: int
    """Updates that only dead workers had applied, or one alone whom nobody could check: made again."""
    problems: list[str]
    runs: int = 1
    """Beginnings: one, and one for each time that the job came back from a checkpoint."""
    set_back: int = 0
    """Updates that were made again because nobody held the model any more: they came after the checkpoint,
    or there was none."""
    lost_records: int = 0
    """Records that are no part of the data set any more, since their place in a file cannot be read."""
    fingerprint: str = ""
    """Of the weights at the end, where the job was reproducible."""

    @property
    def clean(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        if not self.clean:
            return f"NOT CLEAN: {len(self.problems)} problems; first: {self.problems[0]}"
        bad = f"; without {self.left_out}" if self.left_out else ""
        anew = f"; {self.begun_anew}" if self.begun_anew else ""
        return (
            f"clean: {self.steps} steps in {self.generations} rings, {self.records} records, "
            f"each exactly once per epoch ({self.epochs} complete){bad}{anew}"
        )

    @property
    def begun_anew(self) -> str:
        """What was lost with everybody who held the model, in words; empty when nothing ever was."""
        if self.runs <= 1:
            return ""
        times = f"{self.runs - 1} time{'' if self.runs == 2 else 's'}"
        steps = f"{self.set_back} steps that nobody held any more were made again"
        return f"begun anew {times}, from a checkpoint or the start; {steps}"

    @property
    def left_out(self) -> str:
        """What of the data was not trained, in words; empty when all of it was."""
        parts = []
        if self.bad_records:
            parts.append(f"{self.bad_records} bad record{'' if self.bad_records == 1 else 's'}")
        if self.lost_records:
            parts.append(f"about {self.lost_records} records in unreadable parts of the files")
        return " and ".join(parts)


MAX_PROBLEMS = 50


Ring = tuple[int, int]
"""(run, generation): a job that was started again counts its generations anew."""


def judge(
    workers: Mapping[str, Iterable[Entry]],
    *,
    dataset: int,
    finished: bool,
    starts: Mapping[int, Start] | None = None,
    lost_records: int = 0,
) -> Verdict:
    """Check the entries of all workers. `finished`: every begun epoch must be complete."""
    problems: list[str] = []
    begins: dict[Ring, Begin] = {}
    fed: dict[tuple[Ring, int], list[Fed]] = {}
    applied: dict[Ring, set[int]] = {}
    for worker, entries in workers.items():
        own_step, run = -1, 0
        for entry in entries:
            match entry:
                case Begin(generation, step):
                    run = entry.run
                    known = begins.setdefault((run, generation), entry)
                    if (known.step, known.size) != (step, entry.size):
                        problems.append(
                            f"ranks of generation {generation} disagree: {known.step} and {step} updates, "
                            f"{known.size} and {entry.size} members"
                        )
                    if step < own_step - entry.given_up:
                        problems.append(
                            f"{worker} had {own_step} updates and was set back to {step} "
                            f"in generation {generation}: a step was lost"
                        )
                    own_step = step
                case Fed(generation, step):
                    fed.setdefault(((run, generation), step), []).append(entry)
                case Applied(generation, step):
                    applied.setdefault((run, generation), set()).add(step)
                    own_step = step + 1

    line = _lineage(begins, applied, problems, starts or {})
    used: dict[int, dict[int, int]] = {}
    bad = 0
    distinct: set[int] = set()
    for step, ring in sorted(line.steps.items()):
        parts = fed.get((ring, step), [])
        if len(parts) != begins[ring].size:
            problems.append(
                f"step {step} of generation {ring[1]}: {len(parts)} of {begins[ring].size} "
                "ranks wrote down what they read"
            )
        for part in parts:
            bad += len(part.bad)
            distinct.update(part.bad)
            counts = used.setdefault(part.epoch, {})
            for record in (*part.records, *part.bad):
                counts[record] = counts.get(record, 0) + 1
    complete = _count_epochs(used, dataset, finished, problems, line.start.position)
    return Verdict(
        steps=len(line.steps),
        epochs=complete,
        records=sum(sum(c.values()) for c in used.values()) - bad,
        bad_records=len(distinct),
        generations=len(begins),
        redone=line.redone,
        problems=problems[:MAX_PROBLEMS],
        runs=max(1, len({run for run, _ in begins})),
        set_back=line.set_back,
        lost_records=lost_records,
    )


@dataclass
class _Line:
    """The updates of the final model."""

    start: Start
    """Before it nothing was written down here."""
    steps: dict[int, Ring] = field(default_factory=dict)
    """In which ring each was made."""
    redone: int = 0
    set_back: int = 0


def _lineage(
    begins: Mapping[Ring, Begin],
    applied: Mapping[Ring, set[int]],
    problems: list[str],
    starts: Mapping[int, Start],
) -> _Line:
    line = _Line(starts.get(min(begins)[0], Start()) if begins else Start())
    run = min(begins)[0] if begins else 0
    for ring in sorted(begins):
        begin = begins[ring].step
        kept = {step: r for step, r in line.steps.items() if step < begin}
        dropped = len(line.steps) - len(kept)
        if ring[0] != run:
            run = ring[0]
            line.set_back += dropped
            if begin < line.start.step:
                line.start = starts.get(run, Start())
        else:
            line.redone += dropped
        line.steps = kept
        known = line.start.step + len(line.steps)
        if known < begin:
            problems.append(
                f"generation {ring[1]} begins after {begin} updates, but only {known} are accounted for"
            )
        line.steps.update(dict.fromkeys(applied.get(ring, ()), ring))
    first = line.start.step
    if set(line.steps) != set(range(first, first + len(line.steps))):
        problems.append("the updates are not numbered without a gap")
    return line


def _count_epochs(
    used: Mapping[int, Mapping[int, int]],
    dataset: int,
    finished: bool,
    problems: list[str],
    first_position: int,
) -> int:
    complete = 0
    first_epoch, before = divmod(first_position, dataset)
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
            missing = dataset - len(counts) - (before if epoch == first_epoch else 0)
            if missing:
                problems.append(f"epoch {epoch}: {missing} of {dataset} records were never used")
    return complete
