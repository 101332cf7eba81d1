"""A machine: own network, processes, mounts, host name. It ends, whole, when its process 1 ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TypeVar

from kubelab import commands, places
from kubelab.errors import ClusterStateError
from kubelab.namespaces import MACHINE, NETWORK, inside
from kubelab.processes import Identity, bury, environment
from kubelab.waiting import eventually

T = TypeVar("T")


class Machine:
    """A machine of a cluster, made by namespaces; known by name and run directory to any later command."""

    def __init__(self, run: Path, name: str) -> None:
        self.run_directory = run
        self.name = name

    @property
    def _state(self) -> Path:
        return self.run_directory / "processes" / f"{self.name}.machine.json"

    @property
    def identity(self) -> Identity | None:
        """Its process 1, as numbered outside."""
        try:
            return Identity(**json.loads(self._state.read_text()))
        except FileNotFoundError:
            return None

    @property
    def on(self) -> bool:
        """Whether it has power."""
        return (identity := self.identity) is not None and identity.alive

    @property
    def pid(self) -> int:
        """The number of its process 1."""
        if (identity := self.identity) is None or not identity.alive:
            raise ClusterStateError(f"machine {self.name} is off")
        return identity.pid

    def boot(self) -> None:
        """Switch it on: empty network, private /run and /var/log, writes to /var/lib kept to itself."""
        log = self.run_directory / "logs" / f"{self.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        self._state.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as stderr:
            starter = subprocess.Popen(
                [
                    *("unshare", "--net", "--pid", "--mount", "--uts", "--ipc", "--fork", "--mount-proc"),
                    *("--kill-child", sys.executable, "-I", "-S", str(places.PACKAGE / "init.py")),
                ],
                env=environment(self.run_directory),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
                cwd="/",
            )
        assert starter.stdout is not None
        with starter.stdout as answer:
            if not answer.readline():
                raise ClusterStateError(
                    f"machine {self.name} did not start: {log.read_text(errors='replace')}"
                )
        bury(starter)
        children = Path(f"/proc/{starter.pid}/task/{starter.pid}/children").read_text().split()
        self._state.write_text(json.dumps(asdict(Identity.of(int(children[0])))))
        self.run("hostname", self.name)
        for directory in ("/run", "/var/log"):
            self.run("mount", "-t", "tmpfs", "kubelab", directory)
        # Programs that leave traces under /var/lib (CNI's cache) leave them in memory.
        self.run("mkdir", "-p", "/run/kubelab/upper", "/run/kubelab/work")
        layers = "lowerdir=/var/lib,upperdir=/run/kubelab/upper,workdir=/run/kubelab/work"
        self.run("mount", "-t", "overlay", "-o", layers, "kubelab", "/var/lib")
        self.network("ip", "link", "set", "lo", "up")
        self.sysctl("net/ipv4/ip_forward", "1")

    def end(self) -> None:
        """End process 1; the kernel ends everything else in the machine before it lets it go."""
        if (identity := self.identity) is not None and identity.alive:
            identity.signal(signal.SIGKILL)
            eventually(lambda: not identity.alive, f"machine {self.name} ends", 30, 0.01)
        self._state.unlink(missing_ok=True)

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
