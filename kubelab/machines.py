"""A machine: own network, processes, mounts, host name. It ends, whole, when its process 1 ends.

And the programs that run on one.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from kubelab import cgroups, commands, places
from kubelab.errors import ClusterStateError
from kubelab.namespaces import MACHINE, NETWORK, inside
from kubelab.processes import Recorded

T = TypeVar("T")


@dataclass(frozen=True)
class Machine(Recorded):
    """A machine of a cluster, made by namespaces; what is written down is its process 1.

    To kill it is to cut its power: the kernel ends everything else in it before it lets process 1 go.
    """

    @property
    def pid(self) -> int:
        """The number of its process 1, as numbered outside."""
        if (identity := self.identity) is None or not identity.alive:
            raise ClusterStateError(f"machine {self.name} is off")
        return identity.pid

    def boot(self) -> None:
        """Switch it on: empty network, private /run and /var/log, writes to /var/lib kept to itself."""
        starter = self._launch(
            [
                *("unshare", "--net", "--pid", "--mount", "--uts", "--ipc", "--fork", "--mount-proc"),
                *("--kill-child", sys.executable, "-I", "-S", str(places.PACKAGE / "init.py")),
            ],
            stdout=subprocess.PIPE,
        )
        assert starter.stdout is not None
        with starter.stdout as answer:
            if not answer.readline():
                raise ClusterStateError(f"machine {self.name} did not start: {self.tail()}")
        children = Path(f"/proc/{starter.pid}/task/{starter.pid}/children").read_text().split()
        self._write_down(int(children[0]))
        self.run("hostname", self.name)
        for directory in ("/run", "/var/log"):
            self.run("mount", "-t", "tmpfs", "kubelab", directory)
        # Programs that leave traces under /var/lib (CNI's cache) leave them in memory.
        self.run("mkdir", "-p", "/run/kubelab/upper", "/run/kubelab/work")
        layers = "lowerdir=/var/lib,upperdir=/run/kubelab/upper,workdir=/run/kubelab/work"
        self.run("mount", "-t", "overlay", "-o", layers, "kubelab", "/var/lib")
        self.network("ip", "link", "set", "lo", "up")
        self.sysctl("net/ipv4/ip_forward", "1")

    def run(
        self, program: str | Path, *arguments: str | Path, stdin: str | None = None, timeout: float = 120.0
    ) -> str:
        """Run a program inside, to its end."""
        call = partial(commands.run, program, *arguments, stdin=stdin, timeout=timeout)
        return inside(self.pid, MACHINE, call)

    def network(self, program: str, *arguments: str, stdin: str | None = None) -> str:
        """Run a program in its network only; process numbers mean what they mean outside."""
        return inside(self.pid, NETWORK, lambda: commands.run(program, *arguments, stdin=stdin))

    def in_network(self, call: Callable[[], T]) -> T:
        """Call a function in its network, for instance to open a socket there."""
        return inside(self.pid, NETWORK, call)

    def sysctl(self, name: str, value: str) -> None:
        """Set a network setting of the kernel, for this machine only."""
        self.in_network(lambda: Path(f"/proc/sys/{name}").write_text(value))


@dataclass(frozen=True)
class Component(Recorded):
    """One restartable program on one machine."""

    argv: list[str]
    machine: Machine | None = None
    """None: on this machine itself."""
    pass_fds: tuple[int, ...] = ()
    group: str | None = None
    """The control group in which it lives; None: that of whoever starts it."""

    def start(self) -> None:
        """Start it unless it runs."""
        if not self.running:
            argv = self.argv if self.group is None else cgroups.joining(self.group, self.argv)
            machine = self.machine.pid if self.machine else None
            self._write_down(self._launch(argv, machine, pass_fds=self.pass_fds).pid)

    def restart(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self.start()

    def freeze(self) -> None:
        """Stop it without ending it: its connections stay open and nothing answers."""
        if not self.running or self.identity is None:
            raise ClusterStateError(f"{self.name} does not run; its log ends:\n{self.tail()}")
        self.identity.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen one go on."""
        if (identity := self.identity) is not None:
            identity.signal(signal.SIGCONT)
