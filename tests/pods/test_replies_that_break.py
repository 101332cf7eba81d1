"""A connection to the API server can end in the middle of a reply: that is an API server out of reach."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import urllib3

from edl_allreduce.cluster.kubernetes.api import Api
from edl_allreduce.errors import ClusterUnreachable


@contextmanager
def server_that_sends(reply: bytes) -> Iterator[Api]:
    """It answers one request so, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        host, port = listening.getsockname()

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                while b"\r\n\r\n" not in connection.recv(65536):
                    pass
                connection.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        yield Api(
            SimpleNamespace(
                configuration=SimpleNamespace(host=f"http://{host}:{port}"),
                update_params_for_auth=lambda *_: None,
                rest_client=SimpleNamespace(pool_manager=urllib3.PoolManager(retries=False)),
            )
        )
        thread.join()


@pytest.mark.parametrize("status", ["200 OK", "403 Forbidden"])
@pytest.mark.parametrize("method", ["get", "text"])
def test_a_reply_that_is_cut_in_its_body_says_that_the_api_server_is_out_of_reach(status, method):
    cut = f"HTTP/1.1 {status}\r\nContent-Length: 100\r\n\r\n".encode() + b'{"kind":'
    with server_that_sends(cut) as api, pytest.raises(ClusterUnreachable, match="broke"):
        getattr(api, method)("/api/v1/pods")


def test_a_whole_reply_is_read():
    whole = b'HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{"kind": "A"}'
    with server_that_sends(whole) as api:
        assert api.get("/api/v1/pods") == {"kind": "A"}
