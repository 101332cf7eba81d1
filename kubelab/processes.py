"""Processes of a cluster: start, find, stop, freeze.

Every process carries the cluster's run directory in its environment. That mark is how all of them are found
again by a command that did not start them, also when the one that did was killed in the middle.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from kubelab import cgroups
from kubelab.errors import ClusterStateError
from kubelab.namespaces import MACHINE, inside
from kubelab.waiting import eventually

MARK = "KUBELAB_RUN"


@dataclass(frozen=True)
class Identity:
    """A process that cannot be mistaken for a later one with the same number."""

    pid: int
    started: int  # clock ticks since boot, from /proc

    @classmethod
    def of(cls, pid: int) -> Identity:
        """The identity of a living process."""
        fields = _stat(pid)
        if fields is None:
            raise ClusterStateError(f"process {pid} is gone already")
        return cls(pid, int(fields[19]))

    @property
    def alive(self) -> bool:
        """Whether it exists and is more than a zombie."""
        fields = _stat(self.pid)
        return fields is not None and int(fields[19]) == self.started and fields[0] not in "ZX"

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it is gone."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the third on (state first); None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()  # the name before it may contain blanks


def number_inside(pid: int) -> int:
    """The number that a process has in its own pid namespace: 1 for the first of a container."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[-1]) for line in status.splitlines() if line.startswith("NSpid:"))


def environment(run: Path) -> dict[str, str]:
    """The environment of the cluster's processes: the caller's, and the mark."""
    return {**os.environ, MARK: str(run)}


def marked(run: Path) -> list[Identity]:
    """All living processes that carry the mark of this run directory."""
    wanted = f"{MARK}={run}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(Identity.of(int(entry.name)))
            except (OSError, ClusterStateError):
                continue  # ended meanwhile, or another user's
    return found


def bury(child: subprocess.Popen[bytes]) -> None:
    """Collect a child's exit status as soon as it ends.

    The kernel lets a machine go only when its last zombie is gone, and those of our children are ours.
    """
    threading.Thread(target=child.wait, name=f"bury-{child.pid}", daemon=True).start()


def end_all(run: Path) -> None:
    """SIGKILL everything that carries the mark, until nothing is left."""

    def none_left() -> bool:
        victims = marked(run)
        for victim in victims:
            victim.signal(signal.SIGKILL)
        # A machine's process 1 leaves only when the kernel has ended all that lived in it.
        for victim in victims:
            eventually(lambda v=victim: not v.alive, f"process {victim.pid} ends", 30, 0.01)  # type: ignore[misc]
        return not victims

    eventually(none_left, f"all processes of {run} end", 60, 0.01)


@dataclass
class Component:
    """One restartable program on one machine (of which `machine` is process 1; None is this machine)."""

    name: str
    run: Path
    argv: list[str]
    machine: int | None = None
    pass_fds: tuple[int, ...] = ()
    group: str | None = None
    """The control group in which it lives; None: that of whoever starts it."""

    @property
    def log(self) -> Path:
        """Where its output goes; a restart appends."""
        return self.run / "logs" / f"{self.name}.log"

    @property
    def _state(self) -> Path:
        return self.run / "processes" / f"{self.name}.json"

    @property
    def identity(self) -> Identity | None:
        """The process as last started, by whoever did."""
        try:
            return Identity(**json.loads(self._state.read_text()))
        except FileNotFoundError:
            return None

    @property
    def running(self) -> bool:
        """Whether its process lives (a frozen one lives)."""
        return (identity := self.identity) is not None and identity.alive

    def start(self) -> None:
        """Start it unless it runs."""
        if self.running:
            return
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._state.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            process = inside(
                self.machine,
                MACHINE,
                lambda: subprocess.Popen(
                    self.argv if self.group is None else cgroups.joining(self.group, self.argv),
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment(self.run),
                    start_new_session=True,
                    pass_fds=self.pass_fds,
                ),
            )
        bury(process)
        self._state.write_text(json.dumps(asdict(Identity.of(process.pid))))

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        identity = self.identity
        if identity is not None:
            identity.signal(signal.SIGKILL)
            eventually(lambda: not identity.alive, f"{self.name} ends", 30, 0.01)

    def restart(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self.start()

    def freeze(self) -> None:
        """Stop it without ending it: its connections stay open and nothing answers."""
        self._needed().signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen one go on."""
        if (identity := self.identity) is not None:
            identity.signal(signal.SIGCONT)

    def tail(self, lines: int = 20) -> str:
        """The end of its log."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return "(no log)"

    def _needed(self) -> Identity:
        identity = self.identity
        if identity is None or not identity.alive:
            raise ClusterStateError(f"{self.name} does not run; its log ends:\n{self.tail()}")
        return identity
