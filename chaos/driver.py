"""One case on a real job: does the faults at their times, undoes them, watches, gives evidence.

Runs as the first process of namespaces of its own (`chaos.__main__` makes them), so that every process that
is left is the job's, every port that listens is the job's, and nothing outlives the run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from chaos import memory, network, processes
from chaos.faults import CONNECTIONS, LETHAL, Case, Fault, Kind, Moment, Style, Who, Wire, instead
from chaos.job import PORT, Job
from chaos.verdict import Evidence, excuse
from chaos.watch import Watch
from edl_allreduce import clock
from edl_allreduce.contract import EXIT_EVICTED, EXIT_INVALID, EXIT_TERMINATED

LOOK_SECONDS = 0.05
SAMPLE_SECONDS = 2.0
MOMENT_SECONDS = 1.5
"""How long the right moment, or a victim that fits, is waited for."""
HANG_SECONDS = 180.0
"""Without an update after the last fault was over: far beyond every deadline, and a slow start of workers."""
STORM_HANG_SECONDS = 400.0
"""The same, however many faults follow each other."""
LEAVE_SECONDS = 60.0
"""How long workers may take to end after their master."""
RECOVERY_SECONDS = 5.0
"""How long after its fault a worker is not counted on as the one that is spared."""
LONGEST_STEP = 0.3
PATIENT_FAULTS = 5
NEAR = 4
"""Steps before the end that are the last ones."""
HOGS = 3
PAUSE = "pause"
"""A file beside the cases: while it is there, everything stands still. Others may need the machine."""
EXPLAINED = frozenset({0, EXIT_EVICTED, EXIT_TERMINATED, -signal.SIGKILL, -signal.SIGTERM})
"""How a worker may end that nobody denied memory: by a signal from here, or told so by the master."""


@dataclass(frozen=True)
class Done:
    """A fault that happened, or could not."""

    at: float
    fault: Fault
    what: str
    """Empty: nobody was there whom it could have met."""


class Driver:
    """Faults, one after the other; looks in between."""

    def __init__(
        self, case: Case, directory: Path, say: Callable[[str], None], seconds: float, groups: str
    ) -> None:
        """After so many seconds no more faults are done, and the job is let end.

        Names of control groups begin with `groups`.
        """
        self.case = case
        self.job = Job(case.shape, case.seed, directory)
        self.watch = Watch(self.job)
        self.done: list[Done] = []
        self._say = say
        self._filter = network.Filter()
        self._undo: list[tuple[float, Callable[[], object]]] = []
        self._hurt: dict[int, float] = {}
        """Workers that are not counted on, and until when."""
        self._silenced: dict[int, float] = {}
        """Workers that may have to be done without, and until when: also where a fault met everybody."""
        self._denied: set[int] = set()
        """Workers without memory."""
        self._crashes: list[str] = []
        self._prefix = groups
        self._groups: list[memory.Group] = []
        self._master_back: float | None = None
        self._code: int | None = None
        self._full: Path | None = None
        self._slow = False
        self._began = clock.now()
        self._enough = self._began + seconds
        self._disturbed = clock.now()
        self._progress = (0, clock.now())
        self._measured = 0.0

    # ------------------------------------------------------------------------------------------- the run

    def run(self) -> Evidence:
        network.begin()
        self.job.prepare()
        self.job.start_master()
        self._man()
        hang = self._until(lambda: self.watch.step > 0)
        self._began = clock.now()
        for number, fault in enumerate(self.case.faults):
            if hang or self._over or clock.now() > self._enough:
                break
            hang = self._one(number, fault)
        if not hang and not self._over:
            self.job.pace(0.0)
            hang = self._until(lambda: self._over)
        return self._evidence(hang)

    @property
    def _over(self) -> bool:
        return self._code is not None

    def _one(self, number: int, fault: Fault) -> str:
        """Wait for its time and moment, then do it; returns why the job hangs, if it does."""
        if hang := self._stand_still():
            return hang
        due = (self.done[-1].at if self.done else self._began) + fault.pause
        self._set_pace(number)
        hang = self._until(lambda: clock.now() >= due and not self._exhausted)
        hang = hang or self._moment(fault)
        what = ""
        patience = clock.now() + MOMENT_SECONDS
        while not (hang or self._over or what):
            what = self._do(fault)
            if what or clock.now() > patience:
                break
            hang = self._tick()
        for other in instead(fault)[1:]:
            if not (what or hang or self._over):
                fault, what = other, self._do(other)
        if not self._over:
            self.done.append(Done(clock.now(), fault, what))
            self._disturbed = clock.now() + (fault.seconds if what else 0.0)
            self._say(
                f"{number + 1}/{len(self.case.faults)} step {self.watch.step}: {fault}: {what or 'missed'}"
            )
        return hang

    def _stand_still(self) -> str:
        """As long as somebody wants it, between two faults: as if the machine had slept."""
        pause = self.job.directory.parent / PAUSE
        if not pause.exists():
            return ""
        last = max([self._began, *(done.at + done.fault.seconds for done in self.done[-10:])])
        hang = self._until(lambda: not self._undo and self._progress[1] > last + RECOVERY_SECONDS)
        if hang or self._over:
            return hang
        self._silence(self.job.worker_pids(), 0.0)
        met, began = self._left(), clock.now()
        _signals(met, signal.SIGSTOP)
        self._say("everything stands still")
        for _ in clock.polls(1.0):
            if not pause.exists():
                break
        _signals(met, signal.SIGCONT)
        now = clock.now()
        self._silence(self.job.worker_pids(), RECOVERY_SECONDS)
        self._enough += now - began
        self._disturbed, self._progress = now, (self._progress[0], now)
        nap = Fault(0.0, Kind.FREEZE, Who.MACHINE, seconds=round(now - began, 1))
        self.done.append(Done(now, nap, f"pids {met}"))
        self._say(f"step {self.watch.step}: {nap}")
        return ""

    @property
    def _exhausted(self) -> bool:
        """So many faults in a row without an update that the next ones would only meet workers that start."""
        recent = self.done[-PATIENT_FAULTS:]
        return len(recent) == PATIENT_FAULTS and recent[0].at > self._progress[1]

    def _moment(self, fault: Fault) -> str:
        if fault.moment is Moment.NOW:
            return ""
        if fault.moment is Moment.LAST_STEPS:
            near = self.case.shape.steps - NEAR
            self.job.pace(0.0)
            hang = self._until(lambda: self.watch.step >= near - 2 * NEAR)
            self.job.pace(0.1)
            return hang or self._until(lambda: self.watch.step >= near)
        if fault.moment is Moment.FINISH:
            self.job.pace(0.0)
            return self._until(lambda: "finish" in self.watch.kinds)
        seen, limit = len(self.watch.kinds), clock.now() + MOMENT_SECONDS
        return self._until(lambda: fault.moment in self.watch.kinds[seen:] or clock.now() > limit)

    def _set_pace(self, number: int) -> None:
        """So that training lasts as long as the faults."""
        seconds = sum(fault.pause + 1.0 for fault in self.case.faults[number:])
        steps = max(1, self.case.shape.steps - self.watch.step - 10 * NEAR)
        self.job.pace(min(LONGEST_STEP, seconds / steps))

    def _until(self, reached: Callable[[], bool]) -> str:
        while not (self._over or reached()):
            hang = self._tick()
            if hang:
                return hang
        return ""

    def _tick(self) -> str:
        """Look, keep the job manned, undo what is due; returns why the job hangs, if it does."""
        clock.sleep(LOOK_SECONDS)
        now = clock.now()
        for due, undo in [entry for entry in self._undo if entry[0] <= now]:
            self._undo.remove((due, undo))
            undo()
        self._reap()
        self._look()
        self._man()
        if now - self._measured > SAMPLE_SECONDS:
            self._measured = now
            self.watch.measure()
        if self.watch.progress != self._progress[0]:
            self._progress = self.watch.progress, now
        quiet = now - max(self._progress[1], self._disturbed)
        storm = now - self._progress[1]
        if quiet > HANG_SECONDS or storm > STORM_HANG_SECONDS:
            return f"no update for {storm:.0f} s, at step {self.watch.step} of {self.case.shape.steps}"
        return ""

    def _look(self) -> None:
        self.watch.look()
        now = clock.now()
        for pid, until in self._silenced.items():
            if now <= until:
                self.watch.harm(pid)

    def _silence(self, pids: list[int], seconds: float) -> None:
        for pid in pids:
            self._silenced[pid] = max(self._silenced.get(pid, 0.0), clock.now() + seconds)
            self.watch.harm(pid)  # before it is gone

    def _man(self) -> None:
        """The master is started again after it was killed; workers by hand are replaced."""
        if self.job.master is not None:
            self._code = self.job.master.poll()
        elif self._master_back is not None and clock.now() >= self._master_back:
            self._master_back = None
            self.job.start_master()
        if self.job.shape.style is Style.BY_HAND and not self._over and "finish" not in self.watch.kinds:
            for number, worker in list(self.job.workers.items()):
                code = worker.poll()
                if code is not None:
                    del self.job.workers[number]
                    no_room = code == EXIT_INVALID and self._no_room()
                    if code not in EXPLAINED and worker.pid not in self._denied and not no_room:
                        self._crashes.append(f"worker {number} ended by itself with {code}")
            while len(self.job.workers) < self.job.shape.workers:
                self.job.start_worker()

    def _no_room(self) -> bool:
        """Whether a full disk is felt: a worker by hand that begins then says so and ends."""
        full = [done for done in self.done if done.what and done.fault.kind is Kind.FULL_DISK]
        spans = [span for done in full for span in excuse(done.fault, done.at)]
        return any(first <= clock.now() <= last for first, last in spans)

    def _reap(self) -> None:
        """Whoever lost its parent is a child of this process now."""
        own = {worker.pid for worker in self.job.workers.values()}
        if self.job.master is not None:
            own.add(self.job.master.pid)
        for pid in list(processes.pids()):
            if pid not in own and processes.state(pid) == "Z":
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    # ---------------------------------------------------------------------------------------- the faults

    def _do(self, fault: Fault) -> str:
        """Do it now, if there is somebody to do it to; returns what was done."""
        random = Random(fault.pick)
        if fault.kind is Kind.HOG:
            return self._hog(fault)
        if fault.kind is Kind.FULL_DISK:
            return self._fill(fault)
        if fault.who is Who.MASTER:
            return self._master(fault)
        if fault.kind is Kind.SLOW and fault.who is Who.ALL:
            return self._slow_machine(fault)
        victims = self._victims(fault, random)
        if not victims:
            return ""
        if fault.kind in CONNECTIONS:
            return self._connections(fault, victims, random)
        return self._signals(fault, victims)

    def _victims(self, fault: Fault, random: Random) -> list[int]:
        now = clock.now()
        living = self.job.worker_pids()
        seated = self.watch.seated(living)
        newcomers = [pid for pid in living if pid not in seated]
        if fault.who is Who.NEWCOMER:
            return random.sample(newcomers, min(1, len(newcomers)))
        if fault.who is Who.ALL:
            return living
        pool = seated or ([] if self.case.shape.careful else living)
        if self.case.shape.careful and self._harms(fault):
            sound = [pid for pid in seated if self._hurt.get(pid, 0.0) < now]
            if not sound:
                return []
            spared = sound[random.randrange(len(sound))]
            pool = [pid for pid in seated if pid != spared]
        wanted = 1 if fault.who is Who.ONE else max(2, len(pool) - 1)
        return random.sample(pool, min(wanted, len(pool)))

    def _harms(self, fault: Fault) -> bool:
        """Whether somebody might have to do without whom it meets."""
        silent = fault.kind is Kind.FREEZE or (fault.kind is Kind.DROP and fault.wire is Wire.STREAM)
        return fault.kind in LETHAL or silent

    def _signals(self, fault: Fault, victims: list[int]) -> str:
        lasting = float("inf") if fault.kind in LETHAL else fault.seconds + RECOVERY_SECONDS
        if self._harms(fault):
            self._silence(victims, lasting)
        for pid in victims:
            if self._harms(fault):
                self._hurt[pid] = clock.now() + lasting
            match fault.kind:
                case Kind.KILL:
                    _signal(pid, signal.SIGKILL)
                case Kind.TERMINATE | Kind.TERMINATE_THEN_KILL:
                    _signal(pid, signal.SIGTERM)
                case Kind.FREEZE:
                    _signal(pid, signal.SIGSTOP)
                case Kind.NO_MEMORY:
                    self._no_memory(fault, pid)
        later = {Kind.FREEZE: signal.SIGCONT, Kind.TERMINATE_THEN_KILL: signal.SIGKILL}.get(fault.kind)
        if later is not None:
            number = later
            self._after(fault.seconds, lambda: _signals(victims, number))
        return f"pids {victims}"

    def _no_memory(self, fault: Fault, pid: int) -> None:
        """The process is told no, or the kernel ends it: they end in different ways."""
        self._denied.add(pid)
        if fault.pick % 2:
            memory.refuse(pid)
            return
        group = memory.Group(f"{self._prefix}{len(self._groups)}")
        self._groups.append(group)
        group.take(pid)
        self._after(fault.seconds, group.remove)

    def _remove_groups(self) -> None:
        """Once more: they were busy while somebody ended in them."""
        for group in self._groups:
            group.remove()

    def _connections(self, fault: Fault, victims: list[int], random: Random) -> str:
        known = processes.connections(self.job.worker_pids())
        ends = [end for pid in victims for end in network.of(fault.wire, pid, known, PORT)]
        if not ends:
            return ""
        if self._harms(fault) and fault.who is not Who.ALL:
            for pid in victims:
                self._hurt[pid] = clock.now() + fault.seconds + RECOVERY_SECONDS
        if fault.kind is Kind.DROP:  # in the ring the other end hears nothing either
            met = victims if fault.wire is Wire.STREAM else self.job.worker_pids()
            self._silence(met, fault.seconds + RECOVERY_SECONDS)
        one_way = fault.kind is Kind.RESET_ONE_SIDE or (fault.kind is Kind.DROP and random.random() < 0.3)
        if fault.kind is not Kind.RESET:
            table = self._filter.apply(fault.kind, ends, one_way=one_way)
            self._after(fault.seconds, lambda: self._filter.remove(table))
        if fault.kind in (Kind.RESET, Kind.RESET_ONE_SIDE):
            network.reset(ends)
        return f"{len(ends)} connections of pids {victims}" + (", one way" if one_way else "")

    def _slow_machine(self, fault: Fault) -> str:
        if self._slow:
            return ""
        self._slow = True
        network.slow_machine()
        self._after(fault.seconds, self._quick_machine)
        return "every connection"

    def _quick_machine(self) -> None:
        network.quick_machine()
        self._slow = False

    def _master(self, fault: Fault) -> str:
        master = self.job.master
        if master is None:
            return ""
        match fault.kind:
            case Kind.KILL:
                self._make_room()
                master.kill()
                code = master.wait()
                if code != -signal.SIGKILL:  # it had ended by itself a moment before
                    self._code = code
                    return ""
                self.job.master = None
                self._master_back = clock.now() + fault.seconds
            case Kind.FREEZE:
                _signal(master.pid, signal.SIGSTOP)
                self._after(fault.seconds, lambda: _signal(master.pid, signal.SIGCONT))
            case Kind.DROP | Kind.SLOW:
                if fault.kind is Kind.DROP:
                    self._silence(self.job.worker_pids(), fault.seconds + RECOVERY_SECONDS)
                table = self._filter.apply_port(fault.kind, PORT)
                self._after(fault.seconds, lambda: self._filter.remove(table))
            case _:
                ends = [end for end in processes.connections([master.pid])[master.pid] if end.local == PORT]
                if not ends:
                    return ""
                if fault.kind is Kind.RESET_ONE_SIDE:
                    table = self._filter.apply(fault.kind, ends, one_way=True)
                    self._after(fault.seconds, lambda: self._filter.remove(table))
                network.reset(ends)
        return f"pid {master.pid}"

    def _hog(self, fault: Fault) -> str:
        command = [sys.executable, "-c", "while True: pass"]
        hogs = [subprocess.Popen(command) for _ in range(HOGS)]

        def end() -> None:
            for hog in hogs:
                hog.kill()
                hog.wait()

        self._after(fault.seconds, end)
        return f"{HOGS} processes"

    def _fill(self, fault: Fault) -> str:
        if self._full is not None:
            return ""
        self._full = self.job.disk / "filler"
        with suppress(OSError), self._full.open("wb", buffering=0) as file:
            while file.write(b"x" * 65536) == 65536:
                pass
        self._after(fault.seconds, self._make_room)
        return str(self._full.stat().st_size)

    def _make_room(self) -> None:
        if self._full is not None:
            self._full.unlink(missing_ok=True)
            self._full = None

    def _after(self, seconds: float, undo: Callable[[], object]) -> None:
        self._undo.append((clock.now() + seconds, undo))

    # -------------------------------------------------------------------------------------- the evidence

    def _evidence(self, hang: str) -> Evidence:
        for _, undo in self._undo:
            undo()
        self._undo.clear()
        for _ in clock.polls(LOOK_SECONDS, within=0.0 if hang else LEAVE_SECONDS):
            self._reap()
            self._poll_workers()
            if not self._left() and not processes.listening():  # a process ends thread by thread
                break
        self._remove_groups()
        self._look()
        watch = self.watch
        return Evidence(
            code=self._code,
            reason=self.job.last_words(),
            diaries=list(watch.diaries.values()),
            weights=self.job.weights(),
            processes=[" ".join(processes.command(pid))[:120] for pid in self._left()] if not hang else [],
            ports=processes.listening() if not hang else [],
            files=self.job.left_behind() if not hang else [],
            samples=watch.samples,
            sightings=watch.sightings,
            harmed=watch.harmed,
            blame=watch.blame,
            excused=[span for done in self.done if done.what for span in excuse(done.fault, done.at)],
            crashes=self._crashes,
            hang=hang,
        )

    def _poll_workers(self) -> None:
        for worker in self.job.workers.values():
            worker.poll()

    def _left(self) -> list[int]:
        """Processes that live and are no zombies."""
        return [
            pid
            for pid in processes.pids()
            if processes.state(pid) not in ("", "Z") and processes.command(pid)
        ]


def _signals(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        _signal(pid, number)


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
