"""Sockets that are files: the address of a master on this machine, `unix:/path/to/master.sock`."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import Final

UNIX: Final = "unix:"
LONGEST_PATH: Final = 100
"""The kernel's own limit is 108 bytes with the final zero."""
PLAIN: Final = re.compile(r"[\w/.-]+", re.ASCII)
"""What means itself in an address of gRPC."""


def unix_target(address: str) -> str:
    """As gRPC takes it: directories may have longer and stranger names than a socket may."""
    path = Path(address.removeprefix(UNIX))
    if len(str(path)) <= LONGEST_PATH and PLAIN.fullmatch(str(path)):
        return f"{UNIX}{path}"
    return f"{UNIX}/proc/self/fd/{_opened(path.parent)}/{path.name}"


@functools.cache
def _opened(directory: Path) -> int:
    """For the rest of this process, which may connect again at any time."""
    return os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
