"""Another user of the machine, without a token: speaks to every port that it is told of, in many ways.

Reads ports from its input, one per line, until that ends; then prints what it did and learnt, as JSON. With a
user's number as its argument it becomes that user first.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections import deque

WORDS = (
    b"",
    b"PUT /global/all-2/0 HTTP/1.1\r\nContent-Length: 4\r\n\r\nevil",
    b"PUT /next HTTP/1.1\r\nContent-Length: 7\r\n\r\ngarbage",
    b"GET /global/all-2 HTTP/1.1\r\n\r\n",
    b"x" * 100_000,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    bytes(range(256)) * 4,
)
MOST_OPEN = 100


def main() -> None:
    if len(sys.argv) > 1:
        os.setgroups([])
        os.setgid(int(sys.argv[1]))
        os.setuid(int(sys.argv[1]))
    done = {"connected": 0, "refused": 0, "longest": 0, "ports": 0}
    held: deque[socket.socket] = deque()
    ports = set()
    for line in sys.stdin:
        ports.add(int(line))
        for words in WORDS:
            connection = socket.socket()
            connection.settimeout(0.05)
            try:
                connection.connect(("127.0.0.1", int(line)))
                done["connected"] += 1
                connection.sendall(words)
                done["longest"] = max(done["longest"], len(connection.recv(10_000)))
            except OSError:
                done["refused"] += 1
            held.append(connection)
        while len(held) > MOST_OPEN:
            held.popleft().close()
    done["ports"] = len(ports)
    print(json.dumps(done))


if __name__ == "__main__":
    main()
