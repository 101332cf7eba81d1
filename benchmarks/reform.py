"""How long survivors pause when the ring changes, over Horovod Elastic.

    python -m benchmarks.reform [--rounds 1] [--kills 7] [--drains 7] [--kills_of_four 7] [--json FILE]

A pause is the time on a survivor from the end of its last step in the old ring to the end of its first step
in the new one; the slowest survivor counts. Both sides: the same small model, commits every step at the
peer's, every worker with the same threads. A round is two jobs of ours, with the peer's turn before, between
and after them:

- ours: three workers; one is killed, its replacement joins, one drains, its replacement joins, and so on;
  then kills in a job of four workers.
- Horovod Elastic: two hosts, a third appears, disappears, two more appear, one rank is killed, another one.
  Its drain is a host that the discovery script no longer names.

Two more rows are no pauses: how long a job of three has fewer workers after a kill, without and with a worker
that stands by (--standby=1).

The replacement of a lost worker starts on the same cores: ours half a second later, when the survivors are
through; theirs when the discovery script names a host for it.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import frame
from benchmarks.contestants import (
    LONG,
    NAMES,
    PHASES,
    Hosts,
    Peer,
    Reform,
    our_job,
    peer,
    peer_environment,
    peers_run_on,
    program,
    reforms,
    stop,
    threads_of,
    write_records,
)
from benchmarks.frame import BenchmarkFailed, Figure, Report, said
from benchmarks.marks import Mark, read_marks
from edl_allreduce import clock
from edl_allreduce.cluster.registry import LocalJobFiles
from edl_allreduce.core.protocol import Ask
from edl_allreduce.rpc.client import command
from edl_allreduce.testing.jobs import RunningJob

MODEL = "mlp"
BATCH = 64
FOREVER = 10**9
KILL_3, KILL_4, DRAIN, GROW = "kill 3 → 2", "kill 4 → 3", "drain 3 → 2", "grow 2 → 3"
HOROVOD_ELASTIC = "Horovod Elastic"
CASES = (KILL_3, KILL_4, DRAIN, GROW)
WHOLE, WHOLE_STANDBY = "kill, until 3 again", "the same, --standby=1"
WANTED = {KILL_3: 0.2, GROW: 0.05}
SETTLE_SECONDS = 1.0
"""Let the new ring train before the next thing happens."""
STALL_SECONDS = 90.0
"""A peer that does not go on within this time is counted as stalled."""


@dataclass
class Pauses:
    """One side's pauses by case; a case that never came to an end counts as stalled."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: {case: [] for case in CASES})
    phases: dict[str, list[tuple[float, ...]]] = field(default_factory=lambda: {case: [] for case in CASES})
    stalled: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CASES, 0))
    whole: dict[str, list[float]] = field(default_factory=lambda: {WHOLE: [], WHOLE_STANDBY: []})
    """Seconds from a kill until as many train as before."""

    def add(self, case: str, survivors: Sequence[Reform]) -> None:
        slowest = max(survivors, key=lambda reform: reform.pause)
        self.seconds[case].append(slowest.pause)
        self.phases[case].append(slowest.phases)


def main(argv: list[str] | None = None) -> int:
    return frame.run(measure, flags, argv)


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--kills", type=int, default=7, help="in a job of three workers")
    parser.add_argument("--drains", type=int, default=7)
    parser.add_argument("--kills_of_four", type=int, default=7, help="in a job of four workers")
    parser.add_argument("--kills_with_standby", type=int, default=5, help="in a job of three workers")
    parser.add_argument("--model", default=MODEL, help="of ours and of the peer; wide has a large state")
    parser.add_argument("--no_peer", action="store_true", help="only ours")


def measure(settings: argparse.Namespace, directory: Path) -> Report:
    data = write_records(directory / "data", 200 * BATCH)
    ours, theirs = Pauses(), Pauses()
    turns = itertools.count()

    def peers_turn() -> None:
        if not settings.no_peer:
            with said(HOROVOD_ELASTIC):
                _their_round(theirs, directory / f"elastic-{next(turns)}", settings.model, data)

    for round_ in range(settings.rounds):
        peers_turn()
        with said(f"round {round_ + 1}: ours, three workers"):
            where = directory / f"three-{round_}"
            _our_three(ours, where, settings.model, data, settings.kills, settings.drains)
        if settings.kills_with_standby:
            with said(f"round {round_ + 1}: ours, three workers and one that stands by"):
                where = directory / f"standby-{round_}"
                _our_standby(ours, where, settings.model, data, settings.kills_with_standby)
        peers_turn()
        if settings.kills_of_four:
            with said(f"round {round_ + 1}: ours, four workers"):
                _our_four(ours, directory / f"four-{round_}", settings.model, data, settings.kills_of_four)
    peers_turn()
    return _report(ours, theirs)


# --------------------------------------------------------------------------------------------------- ours


def _our_three(pauses: Pauses, where: Path, model: str, data: Path, kills: int, drains: int) -> None:
    with our_job(
        where, model, data, num_workers=3, minibatch_size=BATCH, num_epochs=FOREVER, cool_down_seconds=60
    ) as job:
        ring = _Ring(job, 3)
        for case, number in [(KILL_3, signal.SIGKILL)] * kills + [(DRAIN, signal.SIGTERM)] * drains:
            began = clock.wall()
            pauses.add(case, ring.lose(number))
            pauses.add(GROW, ring.regain())
            if case == KILL_3:
                pauses.whole[WHOLE].append(ring.reformed_at - began)
        stop(job)


def _our_standby(pauses: Pauses, where: Path, model: str, data: Path, kills: int) -> None:
    """Who stands by is in the ring that follows the kill: its survivors' reports are the end of it."""
    numbers = {"num_workers": 3, "standby": 1, "minibatch_size": BATCH, "num_epochs": FOREVER}
    with our_job(where, model, data, **numbers) as job:
        members = list(job.wait_for("plan").event["workers"])
        for _ in range(kills):
            standby = job.wait_for("ready", "stands by").event["worker_id"]
            threading.Event().wait(SETTLE_SECONDS)
            began = clock.wall()
            job.signal(members.pop(0), signal.SIGKILL)
            planned = job.wait_for("plan", "takes over").event
            ended = [job.wait_for("re-form", _goes_on(m, planned["generation"]), again=True) for m in members]
            pauses.whole[WHOLE_STANDBY].append(max(event.wall for event in ended) - began)
            members.append(standby)
        stop(job)


def _goes_on(worker: int, generation: int) -> str:
    return f"worker {worker} goes on in generation {generation} "


def _our_four(pauses: Pauses, where: Path, model: str, data: Path, kills: int) -> None:
    with our_job(where, model, data, num_workers=4, minibatch_size=BATCH, num_epochs=FOREVER) as job:
        ring = _Ring(job, 4)
        for number in range(kills):
            pauses.add(KILL_4, ring.lose(signal.SIGKILL))
            if number + 1 < kills:
                ring.regain()
        stop(job)


def _wait_for_a_step(job: RunningJob) -> None:
    """Who is lost before the first one interrupts nobody."""
    for _ in clock.polls(0.1, within=LONG):
        address = LocalJobFiles(job.job_dir).running()
        if address is not None and command(address.address, address.token, Ask()).step > 0:
            return
    raise BenchmarkFailed(f"no step was made\n{job.story()}")


class _Ring:
    """The workers of a job that trains, oldest first."""

    def __init__(self, job: RunningJob, size: int) -> None:
        self._job = job
        self._members = list(range(size))
        self.reformed_at = 0.0
        """When the last survivor told of the newest ring; of a calendar's clock."""
        job.wait_for("plan", f"workers {', '.join(map(str, self._members))},")
        _wait_for_a_step(job)
        self._settle()

    def lose(self, number: signal.Signals) -> list[Reform]:
        """The eldest leaves: it is rank 0, on which most depends."""
        lost = self._members.pop(0)
        self._job.signal(lost, number)
        return self._reformed()

    def regain(self) -> list[Reform]:
        """Its replacement joins when it is ready."""
        newcomer = self._job.wait_for("ready").text.split()[1]
        survivors = self._reformed()
        self._members.append(int(newcomer))
        return survivors

    def _reformed(self) -> list[Reform]:
        """Reports of all survivors about the newest ring."""
        generation = self._job.wait_for("plan").event["generation"]
        told = [self._job.wait_for("re-form", _goes_on(m, generation), again=True) for m in self._members]
        self.reformed_at = max(event.wall for event in told)
        self._settle()
        return [r for r in reforms(self._job) if r.generation == generation and r.worker in self._members]

    def _settle(self) -> None:
        threading.Event().wait(SETTLE_SECONDS)


# ------------------------------------------------------------------------------------------------ the peer


def _their_round(pauses: Pauses, where: Path, model: str, data: Path) -> None:
    """Two hosts, three, two, four, then two kills. What stalls ends the round."""
    hosts = Hosts(where, NAMES[:2])
    ranks = program(
        "elastic", model=model, data=data, batch=BATCH, steps=FOREVER, marks=where / "marks",
        threads=threads_of(3), commit_every=1,
    )  # fmt: skip
    with peer(where, [*hosts.launcher(2), *ranks], peer_environment()) as running:
        if not _trains(running, 2, STALL_SECONDS):
            raise frame.BenchmarkFailed(f"{running.story()}\n{HOROVOD_ELASTIC} did not begin")
        a, b, c, d, e = NAMES[:5]
        _their_change(pauses, GROW, running, 2, 3, lambda: hosts.are([a, b, c]))
        _their_change(pauses, DRAIN, running, 3, 2, lambda: hosts.are([a, b]))
        hosts.are([a, b, d, e])
        if not _trains(running, 4, STALL_SECONDS):
            pauses.stalled[KILL_4] += 1
            return
        if _their_change(pauses, KILL_4, running, 4, 3, lambda: _kill_newest(running)):
            _their_change(pauses, KILL_3, running, 3, 2, lambda: _kill_newest(running))


def _kill_newest(running: Peer) -> None:
    """The last that began: Horovod numbers ranks by host, so it is no coordinator, which spares the peer."""
    marks = {pid: m for pid, m in read_marks(running.marks).items() if m and Path(f"/proc/{pid}").exists()}
    newest = max(marks, key=lambda pid: marks[pid][0].now)
    os.kill(newest, signal.SIGKILL)


def _trains(running: Peer, size: int, timeout: float) -> bool:
    """Whether `size` ranks make steps in a ring of that size."""

    def happened() -> bool:
        lasts = [m[-1] for m in read_marks(running.marks).values() if m]
        return sum(last.size == size for last in lasts) >= size

    if not running.until(happened, timeout):
        return False
    threading.Event().wait(SETTLE_SECONDS)
    return True


def _their_change(pauses: Pauses, case: str, running: Peer, before: int, after: int, change: object) -> bool:
    assert callable(change)
    since = {pid: len(marks) for pid, marks in read_marks(running.marks).items()}
    change()
    if not _trains(running, after, STALL_SECONDS):
        pauses.stalled[case] += 1
        return False
    gaps = []
    for pid, marks in read_marks(running.marks).items():
        gap = pause_between(marks[max(0, since.get(pid, 0) - 1) :], before, after)
        if pid in since and gap is not None:
            gaps.append(gap)
    pauses.seconds[case].append(max(gaps))
    return True


def pause_between(marks: Sequence[Mark], before: int, after: int) -> float | None:
    """From the last step in a ring of one size to the first in a ring of another; None for no survivor."""
    old = [mark.now for mark in marks if mark.size == before]
    new = [mark.now for mark in marks if mark.size == after]
    return min(new) - max(old) if old and new else None


# -------------------------------------------------------------------------------------------------- report


def _report(ours: Pauses, theirs: Pauses) -> Report:
    report = Report(
        "reform",
        "pause of the slowest survivor, ms",
        ("", "ours", "worst", *PHASES, HOROVOD_ELASTIC, "worst", "stalled", "ours / peer"),
        notes=[
            "Phases are medians. Medians of "
            + ", ".join(f"{len(ours.seconds[c])} and {len(theirs.seconds[c])} ({c})" for c in CASES)
            + " pauses, ours and the peer's.",
            peers_run_on(),
        ],
    )
    words = []
    for case in CASES:
        mine = report.keep(f"{case}, ours", Figure.of(ours.seconds[case]))
        peers = report.keep(f"{case}, {HOROVOD_ELASTIC}", Figure.of(theirs.seconds[case]))
        phases = [Figure.of(values) for values in zip(*ours.phases[case], strict=True)]
        for name, figure in zip(PHASES, phases, strict=False):
            report.keep(f"{case}, ours, {name}", figure)
        ratio = mine.median / peers.median if peers.values else float("nan")
        stalled = theirs.stalled[case]
        report.rows.append(
            (
                case, _ms(mine), _worst(mine), *(_ms(p) for p in phases or [Figure(())] * len(PHASES)),
                _ms(peers), _worst(peers), f"{stalled} of {stalled + len(peers.values)}",
                f"{ratio:.4f}" if peers.values else frame.NOTHING,
            )
        )  # fmt: skip
        wanted = f", wanted ≤ {WANTED[case]:g} s" if case in WANTED else ""
        words.append(f"{case} {mine.median:.3f} s = {ratio:.4f} of the peer's{wanted}")
    for case, seconds in ours.whole.items():
        figure = report.keep(f"{case}, ours", Figure.of(seconds))
        report.rows.append((case, _ms(figure), _worst(figure), *[frame.NOTHING] * (len(PHASES) + 4)))
    report.verdict = "; ".join(words)
    return report


def _ms(figure: Figure) -> str:
    return f"{figure.median * 1000:.0f}" if figure.values else frame.NOTHING


def _worst(figure: Figure) -> str:
    return f"{max(figure.values) * 1000:.0f}" if figure.values else frame.NOTHING


if __name__ == "__main__":
    raise SystemExit(main())
