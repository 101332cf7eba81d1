"""Processes of this machine, told apart from others that get the same number later."""

from __future__ import annotations

import os
from pathlib import Path

from edl_allreduce.contract import MASTER_MARK


def workers_of(mark: str) -> list[int]:
    """Processes that the master with this mark started, and that outlived it."""
    wanted = f"{MASTER_MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir() if mark else ():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:  # it ended, or is somebody else's
            continue
    return found


def process_ticks(pid: int) -> int:
    """When the process began; 0 when there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] == "Z" else int(fields[19])
