"""Servers of others on a port of loopback: of buckets, of images. Each may be killed and started again."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from kubelab import binaries
from kubelab.waiting import eventually

LOOPBACK = "127.0.0.1"


class LoopbackServer:
    """A process that serves until it is killed; it keeps what it has in files, and its port."""

    def __init__(self, program: str, log: Path, arguments: Callable[[int], list[str]]) -> None:
        self.port = _free_port()
        self.kills = 0
        self._program, self._log, self._arguments = program, log, arguments
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        argv = [str(binaries.program(self._program)), *self._arguments(self.port)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=log)
        eventually(self._answers, f"{self._program} on port {self.port} to answer (log: {self._log})", 30)

    @property
    def alive(self) -> bool:
        return self._process is not None

    def kill(self) -> None:
        """As a machine that loses its power."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            self.kills += 1

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((LOOPBACK, self.port)) == 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def s3_server(directory: Path, bucket: str) -> LoopbackServer:
    """An emulator of S3. It checks no signature and no right."""
    file = directory / "buckets.db"
    return LoopbackServer(
        "gofakes3",
        directory / "server.log",
        lambda port: [
            *("-host", f"{LOOPBACK}:{port}", "-backend", "bolt"),
            *("-bolt.db", str(file), "-initialbucket", bucket),
        ],
    )


def gcs_server(directory: Path, bucket: str) -> LoopbackServer:
    """An emulator of Google's storage. It checks no token and no right."""
    (directory / "buckets" / bucket).mkdir(parents=True)
    return LoopbackServer(
        "fake-gcs-server",
        directory / "server.log",
        lambda port: [
            *("-scheme", "http", "-host", LOOPBACK, "-port", str(port)),
            *("-backend", "filesystem", "-filesystem-root", str(directory / "buckets")),
        ],
    )


def registry(directory: Path) -> LoopbackServer:
    """The reference registry of images, without TLS and without a login."""

    def arguments(port: int) -> list[str]:
        config = directory / "registry.yml"
        config.write_text(
            f"""version: 0.1
storage: {{filesystem: {{rootdirectory: {directory / "images"}}}}}
http: {{addr: "{LOOPBACK}:{port}"}}
"""
        )
        return ["serve", str(config)]

    return LoopbackServer("registry", directory / "registry.log", arguments)


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        port: int = taken.getsockname()[1]
        return port
