"""Machines as network namespaces of this one, joined by links of a given bandwidth.

Each machine has one interface, `eth0`; all of them hang on the bridge of a namespace more, the hub, where
masters and launchers run. What a machine sends is limited by a token bucket; nothing leaves this computer.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.frame import BenchmarkFailed

INTERFACE = "eth0"
NETWORK = "10.77.0"
BURST = "256kb"
"""What may leave at once: more than the largest piece that the kernel hands down (64 KiB)."""
QUEUE = "50ms"
"""How long a packet may wait before it is dropped."""


class Links:
    """So many machines; everything is gone when the block ends."""

    def __init__(self, machines: int) -> None:
        must_be_possible()
        self.addresses = [f"{NETWORK}.{number + 1}" for number in range(machines)]
        self.hub_address = f"{NETWORK}.254"
        self._prefix = f"edl-bench-{os.getpid()}"
        self._made: list[str] = []

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def limit(self, gigabits: float) -> None:
        """So much per second may each machine send."""
        for number in range(len(self.addresses)):
            bucket = ["tbf", "rate", f"{gigabits:g}gbit", "burst", BURST, "latency", QUEUE]
            _run("tc", "-n", self._machine(number), "qdisc", "replace", "dev", INTERFACE, "root", *bucket)

    def on_hub(self) -> list[str]:
        """What stands before a command that runs beside the machines."""
        return ["ip", "netns", "exec", self._hub]

    def on(self, number: int) -> list[str]:
        """What stands before a command of one machine, which is called as its address is.

        Stock Horovod connects its process sets at whatever address the machine's name has, and on many
        computers that is 127.0.0.1.
        """
        renamed = 'echo "$0" > /proc/sys/kernel/hostname && exec "$@"'
        within = ["ip", "netns", "exec", self._machine(number), "unshare", "--uts"]
        return [*within, "sh", "-c", renamed, self.addresses[number]]

    def remote_shell(self, directory: Path) -> Path:
        """A directory with an `ssh` that knows these machines by their addresses, as horovodrun calls it."""
        directory.mkdir(parents=True, exist_ok=True)
        cases = "".join(
            f'  {address}) exec {shlex.join(self.on(number))} sh -c "$*" ;;\n'
            for number, address in enumerate(self.addresses)
        )
        program = directory / "ssh"
        program.write_text(
            "#!/bin/sh\nhost=\n"
            'while [ $# -gt 0 ]; do\n  case "$1" in\n    -*) shift 2 ;;\n'
            '    *) if [ -z "$host" ]; then host="$1"; shift; else break; fi ;;\n  esac\ndone\n'
            f'case "$host" in\n{cases}  *) echo "no machine $host" >&2; exit 255 ;;\nesac\n'
        )
        program.chmod(0o755)
        return directory

    @property
    def _hub(self) -> str:
        return f"{self._prefix}-hub"

    def _machine(self, number: int) -> str:
        return f"{self._prefix}-{number}"

    def _add(self, name: str) -> None:
        _run("ip", "netns", "add", name)
        self._made.append(name)
        _run("ip", "-n", name, "link", "set", "lo", "up")

    def _build(self) -> None:
        self._add(self._hub)
        # The bridge is called as the interfaces are: horovodrun wants one name on all machines, its own too.
        _run("ip", "-n", self._hub, "link", "add", INTERFACE, "type", "bridge")
        _run("ip", "-n", self._hub, "address", "add", f"{self.hub_address}/24", "dev", INTERFACE)
        _run("ip", "-n", self._hub, "link", "set", INTERFACE, "up")
        for number, address in enumerate(self.addresses):
            name = self._machine(number)
            self._add(name)
            veth = ["type", "veth", "peer", "name", INTERFACE, "netns", name]
            _run("ip", "-n", self._hub, "link", "add", f"port{number}", *veth)
            _run("ip", "-n", self._hub, "link", "set", f"port{number}", "master", INTERFACE, "up")
            _run("ip", "-n", name, "address", "add", f"{address}/24", "dev", INTERFACE)
            _run("ip", "-n", name, "link", "set", INTERFACE, "up")

    def _remove(self) -> None:
        for name in reversed(self._made):
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)
        self._made.clear()


def must_be_possible() -> None:
    """Raises BenchmarkFailed, with what is missing."""
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        raise BenchmarkFailed(
            f"links of a given speed are made with `ip netns` and `tc`, and {' and '.join(missing)} is not "
            "here: install iproute2"
        )
    if os.geteuid() != 0:
        raise BenchmarkFailed(
            "links of a given speed are network namespaces, which only root may make: run it as root"
        )


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchmarkFailed(
            f"`{' '.join(command)}` failed: {done.stderr.strip()}. This benchmark needs network namespaces "
            "and the token bucket of tc (sch_tbf); many containers allow neither"
        )
