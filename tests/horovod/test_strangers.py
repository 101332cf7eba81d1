"""Strangers at the ports of a ring that forms: whoever cannot prove that it belongs there is not noticed."""

from __future__ import annotations

import hmac
import os
import socket
import struct
import threading
from collections.abc import Callable

import psutil
import pytest
from ring_lab import PATIENCE_SECONDS, Lab, Worker
from ring_store import Request, RingStore

pytestmark = pytest.mark.training

CHALLENGE, ANSWER, PROOF = 16, 48, 32


def ports_of(worker: Worker) -> list[int]:
    connections = psutil.Process(worker.pid).net_connections(kind="tcp")
    return [c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN]


def knock(port: int) -> tuple[socket.socket, bytes]:
    """A connection to a member that waits for its peer, and the challenge that everybody gets."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
    return connection, read(connection, CHALLENGE)


def read(connection: socket.socket, count: int) -> bytes:
    """So many bytes, or all that come before the other end hangs up."""
    got = b""
    try:
        while len(got) < count and (part := connection.recv(count - len(got))):
            got += part
    except ConnectionResetError:
        pass
    return got


def proof(who: str, port: int, challenge: bytes, own: bytes, key: str, *, connector: int = 1) -> bytes:
    """As proof.h describes it; the second implementation."""
    place = struct.pack(">iii", connector, 0, 2)
    address = struct.pack(">I", socket.AF_INET) + socket.inet_aton("127.0.0.1") + struct.pack(">I", port)
    message = b"edl ring 1 " + who.encode() + b"\0" + place + address + challenge + own
    return hmac.digest(key.encode(), message, "sha256")


def form_with_visitors(lab: Lab, workers: list[Worker], visit: Callable[[int], None]) -> None:
    """Form a ring; strangers visit the port of rank 0 before its peer knows where that is."""
    visited = threading.Event()

    def before(request: Request) -> None:
        if request.rank == 1 and request.method == "GET" and not visited.is_set():
            store.wait_for_part(0)
            (port,) = ports_of(workers[0])
            visit(port)
            visited.set()

    store = lab.store(len(workers), on_request=before)
    lab.tell_init(workers, store)
    lab.proven(workers)
    assert visited.is_set()


def test_silent_rude_and_slow_strangers_do_not_disturb_a_ring_that_forms(lab: Lab) -> None:
    workers = lab.workers(2)
    visitors: list[socket.socket] = []

    def visit(port: int) -> None:
        for words in (
            b"",
            b"GET / HTTP/1.1\r\n\r\n",
            os.urandom(ANSWER - 1),
            os.urandom(ANSWER),
            b"\0" * 9000,
        ):
            connection, challenge = knock(port)
            assert len(challenge) == CHALLENGE
            connection.sendall(words)
            visitors.append(connection)
        gone, _ = knock(port)
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.close()  # with a reset

    form_with_visitors(lab, workers, visit)
    for connection in visitors:
        assert read(connection, 1) == b"", "hung up, and told nothing"
    assert not ports_of(workers[0]), "nobody listens in a ring that stands"


def test_those_who_crowd_the_port_do_not_keep_the_peer_out(lab: Lab) -> None:
    workers = lab.workers(2)
    visitors: list[socket.socket] = []

    def visit(port: int) -> None:
        visitors.extend(knock(port)[0] for _ in range(200))
        first = visitors[0]
        assert read(first, 1) == b"", "those who came first made room"

    form_with_visitors(lab, workers, visit)
    descriptors = workers[0].ask("resources").good()["fds"]
    assert descriptors < 100, "all of them were hung up"


def test_a_proof_that_was_meant_for_another_is_worth_nothing(lab: Lab) -> None:
    """A stranger may hear every word of a ring; each word is good for one connection only."""
    workers = lab.workers(2)
    key = workers[0].key
    refused: list[str] = []

    def visit(port: int) -> None:
        own = os.urandom(CHALLENGE)

        def refuses(name: str, make: Callable[[bytes], bytes]) -> None:
            connection, challenge = knock(port)
            connection.sendall(own + make(challenge))
            assert read(connection, PROOF) == b"", name
            refused.append(name)

        refuses("another key", lambda c: proof("connector", port, c, own, "a guess"))
        refuses("another challenge", lambda c: proof("connector", port, os.urandom(CHALLENGE), own, key))
        refuses("another address", lambda c: proof("connector", port + 1, c, own, key))
        refuses("another rank", lambda c: proof("connector", port, c, own, key, connector=2))
        refuses("the listener's own proof", lambda c: proof("listener", port, c, own, key))

    form_with_visitors(lab, workers, visit)
    assert len(refused) == 5


def test_who_knows_the_key_is_let_in_and_gets_a_proof_in_return(lab: Lab) -> None:
    """Otherwise the refusals above would prove nothing."""
    (alone, absent) = lab.workers(2)
    store = lab.store(2)
    lab.tell_init([alone, absent], store)
    store.wait_for_part(0)
    absent.freeze()
    (port,) = ports_of(alone)
    connection, challenge = knock(port)
    own = os.urandom(CHALLENGE)
    connection.sendall(own + proof("connector", port, challenge, own, alone.key))
    assert read(connection, PROOF) == proof("listener", port, challenge, own, alone.key)
    assert not ports_of(alone)


@pytest.mark.parametrize("key", ["a guess", ""])
def test_a_process_without_the_key_does_not_get_into_the_ring(lab: Lab, key: str) -> None:
    member, intruder = workers = lab.workers(2)
    intruder.key = key
    store = lab.store(2)
    lab.tell_init(workers, store)
    assert intruder.answer().error
    if key:
        assert "no proof" in intruder.ask("failure").good()
    member.tell("abort")
    assert member.answer().error, "it waited for its peer until it was told to give up"


def test_who_stands_between_two_members_is_found_out(lab: Lab) -> None:
    """Somebody could put his own address in the place of a member's, and pass on what both say."""
    workers = lab.workers(2)
    passed: list[int] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def relay() -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
            with near, far:
                near.sendall(read(far, CHALLENGE))
                far.sendall(read(near, ANSWER))
                passed.append(1)
                near.sendall(read(far, PROOF))

    def before(request: Request) -> None:
        nonlocal port
        if request.rank == 1 and request.method == "GET" and not port:
            store.wait_for_part(0)
            (port,) = ports_of(workers[0])
            there, here = (struct.pack(">H", p) for p in (port, listener.getsockname()[1]))
            store.change(lambda value: value.replace(b"\2\0" + there, b"\2\0" + here))
            threading.Thread(target=relay, daemon=True).start()

    port = 0
    store = lab.store(2, on_request=before)
    lab.tell_init(workers, store)
    assert workers[1].answer().error
    assert "no proof" in workers[1].ask("failure").good()
    assert passed, "the words of both went through his hands"
    workers[0].tell("abort")
    assert workers[0].answer().error
    listener.close()


def test_an_address_that_is_published_holds_no_memory_of_the_process(lab: Lab) -> None:
    workers = lab.workers(2)
    store: RingStore = lab.store(2)
    lab.tell_init(workers, store)
    lab.proven(workers)
    value = store.values["/global/all-2"]
    parts = value.partition(b"\n")[2]
    loopback = socket.inet_aton("127.0.0.1")
    assert loopback in parts
    left = parts.replace(loopback, b"")
    assert len(left.replace(b"\0", b"").replace(b"\xff", b"")) < 24, "families, ports and numbers only"


def test_without_a_key_it_is_a_stock_horovod(lab: Lab) -> None:
    workers = lab.workers(3)
    for worker in workers:
        worker.key = ""
    lab.form(workers)
