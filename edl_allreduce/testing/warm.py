"""`elasticdl` whose local workers come from a nursery.

python -m edl_allreduce.testing.warm SOCKET train …
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

from edl_allreduce.cli.main import main
from edl_allreduce.cluster import local
from edl_allreduce.testing.nursery import LENGTH, READY


@contextmanager
def nursery(directory: Path) -> Iterator[Path]:
    """The socket of a nursery that is there as long as this context."""
    path = directory / "nursery"
    command = [sys.executable, "-m", "edl_allreduce.testing.nursery", str(path)]
    with (
        (directory / "nursery.log").open("wb") as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log) as process,
    ):
        assert process.stdout is not None and process.stdin is not None
        said = process.stdout.readline().decode().strip()
        assert said == READY, (directory / "nursery.log").read_text()
        yield path
        process.stdin.close()


class Borrowed:
    """A worker whose parent is a nursery."""

    def __init__(self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._reader, self._writer = reader, writer

    async def wait(self) -> int:
        self.returncode = int(await self._reader.readline())
        self._writer.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.Signals(number))


async def borrow(
    path: str, command: Sequence[str], log: BinaryIO, environment: Mapping[str, str]
) -> local.Process:
    """Start a worker there."""
    _, minus_m, module, *arguments = command
    assert minus_m == "-m", command
    request = {"module": module, "arguments": arguments, "environment": dict(environment)}
    body = json.dumps({**request, "directory": str(Path.cwd())}).encode()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    socket.send_fds(connection, [len(body).to_bytes(LENGTH)], [log.fileno()])
    connection.sendall(body)
    reader, writer = await asyncio.open_unix_connection(sock=connection)
    return Borrowed(int(await reader.readline()), reader, writer)


if __name__ == "__main__":
    local.start_process = partial(borrow, sys.argv.pop(1))
    sys.exit(main())
