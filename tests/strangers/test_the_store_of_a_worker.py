"""The rendezvous store on loopback serves its own process only, and nothing that Horovod would not say."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
import threading

import pytest

from edl_allreduce.core import protocol
from edl_allreduce.core.rendezvous import LONGEST_VALUE
from edl_allreduce.worker.ring.store import BAD_REQUEST, LONGEST_LINE, LoopbackStore

STRANGER = """
import socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=30)
try:
    connection.sendall(sys.stdin.buffer.read())
    print(connection.recv(100))
except ConnectionError:
    print(b"")
"""


@pytest.fixture
def sent() -> list[protocol.FromWorker]:
    return []


@pytest.fixture
def store(sent: list[protocol.FromWorker]) -> LoopbackStore:
    store = LoopbackStore(sent.append, 30.0)
    store.open(3)
    return store


def another_process(store: LoopbackStore, words: bytes) -> str:
    """What a process of the same user gets to hear; another user cannot do more."""
    argv = [sys.executable, "-c", STRANGER, str(store.port)]
    done = subprocess.run(argv, input=words, capture_output=True, check=True, timeout=60)
    return done.stdout.decode().strip()


def say(store: LoopbackStore, words: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", store.port), timeout=30) as connection:
        connection.sendall(words)
        return connection.recv(1000)


def status(store: LoopbackStore, method: str, path: str, body: bytes = b"") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", store.port, timeout=30)
    try:
        connection.request(method, path, body)
        return connection.getresponse().status
    finally:
        connection.close()


def test_another_process_learns_nothing(store: LoopbackStore) -> None:
    store.arrived(3, "/global/0", b"address")
    request = b"GET /global/0 HTTP/1.1\r\n\r\n"
    assert another_process(store, request) == "b''"
    assert b"address" in say(store, request), "this process does"


def test_another_process_changes_nothing(store: LoopbackStore, sent: list[protocol.FromWorker]) -> None:
    request = b"PUT /global/all-2/0 HTTP/1.1\r\nContent-Length: 4\r\n\r\nevil"
    assert another_process(store, request) == "b''"
    assert sent == []
    assert status(store, "PUT", "/global/all-2/0", b"mine") == 200
    assert sent == [protocol.KvPart(3, "/global/all-2", 0, 2, b"mine")]


def test_a_stranger_costs_no_thread(store: LoopbackStore) -> None:
    before = threading.active_count()
    others = subprocess.Popen(
        [sys.executable, "-c", "import socket, sys\n"
         "mine = [socket.create_connection(('127.0.0.1', int(sys.argv[1]))) for _ in range(200)]\n"
         "print(sum(c.recv(1) == b'' for c in mine), flush=True)", str(store.port)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert others.communicate(timeout=60)[0].strip() == "200", "all of them were hung up"
    assert threading.active_count() <= before + 1


@pytest.mark.parametrize(
    "path", ["/next", "/here", "/evil", "/global/", "/global/x", "/../etc", "/global/0/1"]
)
def test_only_keys_of_horovod_are_kept(
    store: LoopbackStore, sent: list[protocol.FromWorker], path: str
) -> None:
    assert status(store, "PUT", path, b"value") == BAD_REQUEST
    assert status(store, "GET", path) == BAD_REQUEST
    assert sent == []


@pytest.mark.parametrize(
    "words",
    [
        b"x" * (LONGEST_LINE + 1),
        b"PUT /global/0 HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (LONGEST_VALUE + 1),
        b"PUT /global/0 HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"PUT /global/0 HTTP/1.1\r\nContent-Length: many\r\n\r\n",
        b"PUT /global/0 HTTP/1.1\r\n" + b"A: b\r\n" * 40,
        b"BREW /global/0 HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\xff\xfe\n",
        b"\n",
    ],
)
def test_nonsense_gets_no_more_than_a_refusal(
    store: LoopbackStore, words: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    assert say(store, words).startswith(b"HTTP/1.1 400")
    assert status(store, "PUT", "/global/0", b"right") == 200, "it serves on"
    assert capsys.readouterr().err == "", "and writes no tracebacks"


@pytest.mark.parametrize(
    "key", ["global/0", "global/rank_1", "local_10.0.0.1/0", "cross_0/12", "local_fd00::1/3"]
)
def test_every_key_of_a_stock_horovod_is_kept(store: LoopbackStore, key: str) -> None:
    assert status(store, "PUT", f"/{key}", b"value") == 200
    assert status(store, "GET", f"/{key}") == 200
    assert status(store, "DELETE", f"/{key}") == 200


def test_the_largest_value_of_a_large_ring_fits(store: LoopbackStore) -> None:
    assert status(store, "PUT", "/global/0", b"x" * LONGEST_VALUE) == 200


def test_the_first_stranger_is_told_of(store: LoopbackStore, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        another_process(store, b"hello")
    assert sum("another process connected" in record.message for record in caplog.records) == 1
