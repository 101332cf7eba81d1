"""Processes of a cluster: start, find, end.

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
        """Whether it exists and is more than a zombie.

        A zombie that still has threads is none yet: they end one by one, and the last one closes its ports.
        """
        fields = _stat(self.pid)
        if fields is None or int(fields[19]) != self.started:
            return False
        return fields[0] not in "ZX" or int(fields[17]) > 1

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


@dataclass(frozen=True)
class Recorded:
    """A process that is written down in the run directory, where any later command finds it."""

    name: str
    run_directory: Path

    @property
    def log(self) -> Path:
        """Where its output goes; a restart appends."""
        return self.run_directory / "logs" / f"{self.name}.log"

    @property
    def _record(self) -> Path:
        return self.run_directory / "processes" / f"{self.name}.json"

    @property
    def identity(self) -> Identity | None:
        """The process as last started, by whoever did."""
        try:
            return Identity(**json.loads(self._record.read_text()))
        except FileNotFoundError:
            return None

    @property
    def running(self) -> bool:
        """Whether its process lives (a frozen one lives)."""
        return (identity := self.identity) is not None and identity.alive

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        identity = self.identity
        if identity is not None:
            identity.signal(signal.SIGKILL)
            eventually(lambda: not identity.alive, f"{self.name} ends", 30, 0.01)

    def tail(self, lines: int = 20) -> str:
        """The end of its log."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return "(no log)"

    def _launch(
        self,
        argv: list[str],
        machine: int | None = None,
        stdout: int | None = None,
        pass_fds: tuple[int, ...] = (),
    ) -> subprocess.Popen[bytes]:
        """Start a marked process on a machine (of which `machine` is process 1), with its log or `stdout`."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            process = inside(
                machine,
                MACHINE,
                lambda: subprocess.Popen(
                    argv,
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=log if stdout is None else stdout,
                    stderr=log,
                    env={**os.environ, MARK: str(self.run_directory)},
                    start_new_session=True,
                    pass_fds=pass_fds,
                ),
            )
        # Its exit status is collected as soon as it ends: the kernel lets a machine go only when its last
        # zombie is gone, and those of our children are ours.
        threading.Thread(target=process.wait, name=f"bury-{process.pid}", daemon=True).start()
        return process

    def _write_down(self, pid: int) -> None:
        self._record.parent.mkdir(parents=True, exist_ok=True)
        self._record.write_text(json.dumps(asdict(Identity.of(pid))))
