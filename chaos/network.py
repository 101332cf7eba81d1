"""Connections that break: reset, dropped without a word, slowed. A packet filter inside of this run's own
network; each fault is a table of its own, so that it ends as a whole."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from chaos.faults import Kind, Wire
from chaos.processes import Connection

SLOW_BYTES = "24 kbytes/second burst 96 kbytes"
"""Some hundred times slower than usual; a packet on loopback has up to 64 KiB."""
SLOW_MACHINE = ("rate", "1mbit", "burst", "128kb", "latency", "500ms")


def run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")


def begin() -> None:
    """In a network of its own that has nothing but loopback."""
    run("ip", "link", "set", "lo", "up")


def of(wire: Wire, pid: int, known: dict[int, list[Connection]], master_port: int) -> list[Connection]:
    """The connections of one kind that this process has."""
    own = known.get(pid, [])
    ends = {(connection.local, connection.remote) for connection in own}
    streams = [c for c in own if master_port in (c.local, c.remote)]
    stores = [c for c in own if (c.remote, c.local) in ends]
    if wire is Wire.STREAM:
        return streams
    if wire is Wire.STORE:
        return stores
    return [c for c in own if c not in streams and c not in stores]


class Filter:
    """The tables of the faults that last."""

    def __init__(self) -> None:
        self._serial = 0

    def apply(self, kind: Kind, ends: Sequence[Connection], *, one_way: bool = False) -> str:
        """Drop or slow what these connections carry; returns the name of the table."""
        pairs = {(c.local, c.remote) for c in ends}
        if not one_way:
            pairs |= {(c.remote, c.local) for c in ends}
        flows = ", ".join(f"{a} . {b}" for a, b in sorted(pairs))
        return self._table([f"tcp sport . tcp dport {{ {flows} }} {_action(kind)}"])

    def apply_port(self, kind: Kind, port: int) -> str:
        """The same for everything that goes to or comes from a port, new connections, too."""
        return self._table([f"tcp {side} {port} {_action(kind)}" for side in ("sport", "dport")])

    def _table(self, rules: Sequence[str]) -> str:
        self._serial += 1
        name = f"chaos{self._serial}"
        hook = "type filter hook output priority 0"
        text = "\n".join([f"table inet {name} {{", "chain out {", hook, *rules, "}", "}", ""])
        done = subprocess.run(["nft", "-f", "-"], input=text, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"nft: {text}: {done.stderr.strip()}")
        return name

    def remove(self, name: str) -> None:
        run("nft", "delete", "table", "inet", name)


def _action(kind: Kind) -> str:
    match kind:
        case Kind.SLOW:
            return f"limit rate over {SLOW_BYTES} drop"
        case Kind.RESET_ONE_SIDE:
            return "tcp flags & rst == rst drop"
        case _:
            return "drop"


def reset(ends: Sequence[Connection]) -> None:
    """Close these ends; the other ends are told unless the filter keeps it from them."""
    for end in ends:
        run("ss", "-K", "-t", f"sport = :{end.local} and dport = :{end.remote}")


def slow_machine() -> None:
    """Everything on loopback through one token bucket."""
    run("tc", "qdisc", "add", "dev", "lo", "root", "tbf", *SLOW_MACHINE)


def quick_machine() -> None:
    run("tc", "qdisc", "del", "dev", "lo", "root")
