"""Those without the token at the master: nothing of what they send is read, and nobody is disturbed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest
from serving import TOKEN

from edl_allreduce.core import protocol
from edl_allreduce.core.protocol import Seat
from edl_allreduce.rpc import codec
from edl_allreduce.rpc.client import WorkerStream, command
from edl_allreduce.rpc.identity import TLS_NAME, tls_of
from edl_allreduce.rpc.server import MAX_HEARD, SERVICE

MEBIBYTE = 1024 * 1024
HELLO = protocol.Hello(Seat("uid", 7, "127.0.0.1"), version="0")
WRONG: list[list[tuple[str, str]]] = [
    [],
    [("authorization", "Bearer guess")],
    [("authorization", f"Bearer {TOKEN}x")],
    [("authorization", TOKEN)],
    [("authorization", f"Bearer {TOKEN}"), ("authorization", "Bearer guess")],
    [("authorization", "Bearer " + "x" * 5000)],
]


class Master:
    """The server, and what it costs."""

    def __init__(self, log: Path) -> None:
        self.log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("serving.py"))],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self.address = f"127.0.0.1:{self.port}"
        self._seen = psutil.Process(self._process.pid)

    @property
    def memory(self) -> int:
        return int(self._seen.memory_info().rss)

    @property
    def threads(self) -> int:
        return int(self._seen.num_threads())

    def channel(self) -> grpc.Channel:
        """As a stranger opens it: the certificate is no secret, the master shows it to everybody."""
        credentials = grpc.ssl_channel_credentials(tls_of(TOKEN).certificate.encode())
        unlimited = ("grpc.max_send_message_length", -1)
        named = ("grpc.ssl_target_name_override", TLS_NAME)
        return grpc.secure_channel(self.address, credentials, options=[unlimited, named])

    def works(self) -> bool:
        status = command(self.address, TOKEN, protocol.Ask(), timeout=30)
        return status.job_name == "safe" and len(list_one(self.address)) == 1

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


def list_one(address: str) -> list[protocol.FromMaster]:
    stream = WorkerStream(address, TOKEN, HELLO)
    stream.close()
    return list(stream)


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Master]:
    master = Master(tmp_path_factory.mktemp("master") / "log")
    assert master.works()
    yield master
    master.close()


def refused(
    master: Master, method: str, request: bytes, metadata: list[tuple[str, str]], **options: object
) -> grpc.StatusCode:
    with master.channel() as channel, pytest.raises(grpc.RpcError) as error:  # fmt: skip
        channel.unary_unary(f"/{SERVICE}/{method}")(request, metadata=metadata, timeout=30, **options)
    code: grpc.StatusCode = error.value.code()
    return code


@pytest.mark.parametrize("metadata", WRONG)
@pytest.mark.parametrize("method", ["Command", "Attend", "Nothing"])
def test_no_call_gets_through_without_the_one_right_token(
    master: Master, method: str, metadata: list[tuple[str, str]]
) -> None:
    stop = codec.encode(protocol.StopJob("a stranger"))
    assert refused(master, method, stop, metadata) is grpc.StatusCode.UNAUTHENTICATED
    assert master.works()


def test_megabytes_that_unpack_to_gigabytes_are_not_unpacked(master: Master) -> None:
    """16 requests of 63 MB, each 62 KB on the wire, killed a master with 1 GiB of memory."""
    bomb = b"\0" * (63 * MEBIBYTE)
    before = master.memory
    for _ in range(3):
        code = refused(master, "Command", bomb, [], compression=grpc.Compression.Gzip)
        assert code is grpc.StatusCode.UNIMPLEMENTED, "refused for how it is packed, before it is unpacked"
    assert master.memory - before < 32 * MEBIBYTE, "less than one of them"
    assert master.works()


def test_what_is_sent_without_a_token_is_not_read(master: Master) -> None:
    before = master.memory
    load = b"\0" * (4 * MEBIBYTE)
    with master.channel() as channel:
        call = channel.unary_unary(f"/{SERVICE}/Command")
        tries = [call.future(load, timeout=60) for _ in range(50)]
        # More calls at a time than the master takes may be told to come again.
        refusals = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAVAILABLE}
        assert {attempt.code() for attempt in tries} <= refusals
    assert master.memory - before < 64 * MEBIBYTE, "of 200"
    assert master.works()


def test_not_even_a_worker_sends_what_is_packed_or_too_much(master: Master) -> None:
    right = [("authorization", f"Bearer {TOKEN}")]
    packed = refused(master, "Command", b"\0" * 10_000, right, compression=grpc.Compression.Gzip)
    assert packed is grpc.StatusCode.UNIMPLEMENTED
    large = refused(master, "Command", b"\0" * (MAX_HEARD + 1), right)
    assert large is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert master.works()


def test_garbage_and_silence_change_nothing(master: Master) -> None:
    words = [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100,
        os.urandom(5000),
    ]
    held = []
    for _ in range(20):
        for said in words:
            connection = socket.create_connection(("127.0.0.1", master.port), timeout=30)
            connection.sendall(said)
            held.append(connection)
    assert len(held) == 120 and master.works(), "while all of them are open"
    for connection in held:
        connection.close()
    assert master.works()


def test_who_says_nothing_is_hung_up(master: Master) -> None:
    """Half-open connections would use up the descriptors that workers are started with."""
    with socket.create_connection(("127.0.0.1", master.port), timeout=60) as connection:
        while connection.recv(1000):  # its greeting, then the end
            pass


def test_a_thousand_wrong_tokens_are_a_line_in_the_log_and_nothing_else(master: Master) -> None:
    before, threads = master.memory, master.threads
    with master.channel() as channel:
        call = channel.unary_unary(f"/{SERVICE}/Command")
        metadata = [("authorization", "Bearer x")]
        codes = {call.future(b"\1", metadata=metadata, timeout=60).code() for _ in range(1000)}
        assert codes == {grpc.StatusCode.UNAUTHENTICATED}
    assert master.memory - before < 32 * MEBIBYTE and master.threads <= threads + 4
    lines = master.log.read_text().splitlines()
    assert 1 <= len(lines) < 20, "and none for whoever spoke no TLS"
    assert any("without the job's token were refused" in line for line in lines)
    assert master.works()
