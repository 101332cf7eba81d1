"""Another user of the machine before closed doors: calls without a token and with wrong ones, crowds,
silence, and words that never end.

`python siege.py USER PORT…` becomes that user (0: stays who it is), tries everything at every port, and
prints what it did and what it was told, as JSON.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401  while this user can still read it
import json
import os
import socket
import ssl
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import grpc

NAME = "elasticdl-master"
"""It is in the certificate."""
METHODS = ("Command", "Attend", "Status", "")
TOKENS: list[list[tuple[str, str]]] = [
    [],
    [("authorization", "Bearer guess")],
    [("authorization", "Bearer ")],
    [("authorization", "Bearer " + "x" * 4000)],
]
GREETINGS = (b"", b"\x16\x03\x01\x02\x00\x01", os.urandom(2000), b"GET / HTTP/1.1\r\n")
CROWD = 150
CALLS = 400
LETTERS = 12
"""Of a greeting that comes one by one."""


def plain(port: int) -> Counter[str]:
    """A crowd that says nothing, half a greeting, nonsense, or one letter after the other."""
    told: Counter[str] = Counter()
    held = []
    for number in range(CROWD):
        connection = socket.socket()
        connection.settimeout(2)
        try:
            connection.connect(("127.0.0.1", port))
            connection.sendall(
                (b"", b"\x16\x03\x01\x02\x00\x01", os.urandom(2000), b"GET / HTTP/1.1\r\n")[number % 4]
            )
            held.append(connection)
        except OSError:
            told["refused"] += 1
    told["crowd"] = len(held)
    slow = held[:: len(GREETINGS)]
    for _ in range(LETTERS):
        for connection in slow:
            try:
                connection.send(b"\x16")
            except OSError:
                told["hung up"] += 1
    for connection in held:
        connection.settimeout(0.01)
        with suppress(OSError):
            told["longest"] = max(told["longest"], len(connection.recv(10_000)))
        connection.close()
    return told


def calls(port: int) -> Counter[str]:
    """Over TLS, whose certificate is shown to everybody, and in plain text."""
    told: Counter[str] = Counter()
    try:
        shown = ssl.get_server_certificate(("127.0.0.1", port), timeout=2).encode()
    except OSError:
        return told
    told["certificates"] += 1
    channel = grpc.secure_channel(
        f"127.0.0.1:{port}",
        grpc.ssl_channel_credentials(shown),
        options=[("grpc.ssl_target_name_override", NAME)],
    )
    with channel:
        for method in METHODS:
            for token in TOKENS:
                told[_code(channel, method, token)] += 1
        call = channel.unary_unary("/edl.Master/Command")
        flood = [call.future(b"\1" * 1000, metadata=TOKENS[1], timeout=60) for _ in range(CALLS)]
        told.update(attempt.code().name for attempt in flood)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as open_channel:
        told[_code(open_channel, "Command", TOKENS[1], seconds=3)] += 1
    return told


def _code(channel: grpc.Channel, method: str, token: list[tuple[str, str]], seconds: float = 30) -> str:
    try:
        channel.unary_unary(f"/edl.Master/{method}")(b"\1\2\3", metadata=token, timeout=seconds)
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


def main() -> None:
    user, ports = int(sys.argv[1]), [int(word) for word in sys.argv[2:]]
    grpc.insecure_channel("127.0.0.1:1").close()  # it imports the rest of itself then
    if user:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    told: dict[int, Counter[str]] = {port: Counter() for port in ports}
    with ThreadPoolExecutor(2 * len(ports)) as threads:
        tries = [(port, threads.submit(way, port)) for port in ports for way in (plain, calls)]
        for port, done in tries:
            told[port].update(done.result())
    print(json.dumps(told))


if __name__ == "__main__":
    main()
