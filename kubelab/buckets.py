"""A gate before a server of buckets on loopback, which can refuse, cut and delay what passes."""

from __future__ import annotations

import http.client
import os
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from kubelab.servers import LOOPBACK
from kubelab.waiting import pause


def s3_environment(port: int) -> dict[str, str]:
    """With it S3's own libraries go to this port of this machine."""
    return {
        "AWS_ENDPOINT_URL": f"http://{LOOPBACK}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
        "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
        "NO_PROXY": _without_proxy(),
    }


def gcs_environment(port: int) -> dict[str, str]:
    """The same for those of Google, which neither look for a login nor for the kind of a bucket then."""
    return {
        "STORAGE_EMULATOR_HOST": f"http://{LOOPBACK}:{port}",
        "NO_GCE_CHECK": "true",
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        "NO_PROXY": _without_proxy(),
    }


def _without_proxy() -> str:
    return ",".join(filter(None, (os.environ.get("NO_PROXY"), LOOPBACK)))


Fault = Callable[[str, str, int], str]
"""(method, path, number of the request) -> what happens to it: "", "503", "403", "cut" or "slow"."""


class BucketGate:
    """Passes requests on to a server, unless `fault` says otherwise; counts what it did."""

    def __init__(self, port: int, slow_seconds: float = 0.3) -> None:
        self.fault: Fault = lambda method, path, number: ""
        self.done: dict[str, int] = {}
        self.requests: list[tuple[str, str]] = []
        self._target = port
        self._slow_seconds = slow_seconds
        self._lock = threading.Lock()
        gate = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None:
                """Nobody reads it."""

            def handle_request(self) -> None:
                gate.pass_on(self)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_request

        self._server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="gate", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def count(self, method: str, part: str) -> int:
        """How many requests of that kind came for names with this in them."""
        return sum(1 for asked, path in self.requests if asked == method and part in path)

    def pass_on(self, request: BaseHTTPRequestHandler) -> None:
        with self._lock:
            number = len(self.requests)
            self.requests.append((request.command, request.path))
            fault = self.fault(request.command, request.path, number)
            self.done[fault] = self.done.get(fault, 0) + 1
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        if fault == "slow":
            pause(self._slow_seconds)
        if fault in ("503", "403"):
            _answer(request, int(fault), b"")
            return
        connection = http.client.HTTPConnection(LOOPBACK, self._target, timeout=30)
        try:
            connection.request(request.command, request.path, body, dict(request.headers.items()))
            answer = connection.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException):  # the server was killed
            request.close_connection = True
            return
        finally:
            connection.close()
        request.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                request.send_header(name, value)
        length = answer.getheader("Content-Length") if request.command == "HEAD" else str(len(data))
        request.send_header("Content-Length", length or "0")
        request.end_headers()
        if fault == "cut":
            request.wfile.write(data[: len(data) // 2])
            request.close_connection = True
            request.connection.shutdown(socket.SHUT_RDWR)
        else:
            request.wfile.write(data)


def _answer(request: BaseHTTPRequestHandler, status: int, data: bytes) -> None:
    request.send_response(status)
    request.send_header("Content-Length", str(len(data)))
    request.end_headers()
    request.wfile.write(data)
