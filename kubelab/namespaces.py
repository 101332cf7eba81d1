"""Linux namespaces from Python: run a function as if it were inside another machine.

setns() acts on the calling thread, so a short-lived thread enters the namespaces, does its work (starts a
process, opens a socket, runs a command) and ends. What it made stays where it was made.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import TypeVar

T = TypeVar("T")

_CLONE_FS = 0x00000200


class Kind(Enum):
    """The kinds of namespaces used here; the value is the file name under /proc/PID/ns."""

    NET = "net"
    PID = "pid"
    MOUNT = "mnt"
    UTS = "uts"
    IPC = "ipc"


NETWORK = (Kind.NET,)
MACHINE = (Kind.NET, Kind.UTS, Kind.IPC, Kind.PID, Kind.MOUNT)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def enter(pid: int, kinds: tuple[Kind, ...]) -> None:
    """Move the calling thread into namespaces of process `pid`; there is no way back for the thread."""
    libc = ctypes.CDLL(None, use_errno=True)
    # All are opened first: once in another mount namespace, /proc is another one.
    handles = [os.open(f"/proc/{pid}/ns/{kind.value}", os.O_RDONLY | os.O_CLOEXEC) for kind in kinds]
    try:
        if Kind.MOUNT in kinds:
            # The kernel refuses a new mount namespace while the working directory is shared between threads.
            _check(libc.unshare(_CLONE_FS), "unshare(CLONE_FS)")
        for kind, handle in zip(kinds, handles, strict=True):
            _check(libc.setns(handle, 0), f"entering the {kind.value} namespace of process {pid}")
    finally:
        for handle in handles:
            os.close(handle)


def inside(pid: int | None, kinds: tuple[Kind, ...], call: Callable[[], T]) -> T:
    """Call a function inside namespaces of process `pid`; None means right here."""
    if pid is None:
        return call()

    def entered() -> T:
        enter(pid, kinds)
        return call()

    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(entered).result()
