"""Processes and their connections, as the kernel tells of them. Everything here is of this run: it has
namespaces of its own for processes and for the network."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from chaos.verdict import Sample

LISTEN = 0x0A
MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Connection:
    """One end of a TCP connection."""

    local: int
    remote: int


def pids() -> Iterator[int]:
    """Of all processes but this one."""
    for path in Path("/proc").iterdir():
        if path.name.isdecimal() and int(path.name) != os.getpid():
            yield int(path.name)


def command(pid: int) -> list[str]:
    """Empty when it is gone, or is a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def state(pid: int) -> str:
    """One letter, as in `ps`; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return ""


def open_files(pid: int) -> list[str]:
    found = []
    with suppress(OSError):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found.append(str(path.readlink()))
    return found


def sample(pid: int) -> Sample | None:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    facts = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    if "VmRSS" not in facts:
        return None
    megabytes = int(facts["VmRSS"].split()[0]) / 1024
    return Sample(pid, len(open_files(pid)), int(facts["Threads"]), megabytes)


def address_space(pid: int) -> int:
    """Bytes."""
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _sockets() -> Iterator[tuple[int, int, int, int]]:
    """(local port, remote port, state, inode)."""
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            words = line.split()
            ends = [int(words[place].rpartition(":")[2], 16) for place in (1, 2)]
            yield ends[0], ends[1], int(words[3], 16), int(words[9])


def listening() -> list[int]:
    return sorted(local for local, _, condition, _ in _sockets() if condition == LISTEN)


def connections(workers: list[int]) -> dict[int, list[Connection]]:
    """Of each of these processes."""
    by_inode = {
        inode: Connection(local, remote)
        for local, remote, condition, inode in _sockets()
        if inode and condition != LISTEN
    }
    found: dict[int, list[Connection]] = {}
    for pid in workers:
        inodes = [int(name[8:-1]) for name in open_files(pid) if name.startswith("socket:[")]
        found[pid] = [by_inode[inode] for inode in inodes if inode in by_inode]
    return found
