"""An emulator of S3 behind a gate that can refuse, cut and delay."""

from __future__ import annotations

import threading

import pytest

from edl_allreduce.contract import CACHE_DIR, STORAGE_SECONDS
from edl_allreduce.storage import blocks, remote
from kubelab.buckets import BucketGate, s3_environment
from kubelab.servers import s3_server

BUCKET = "records"


@pytest.fixture(scope="session")
def _server(tmp_path_factory):
    with s3_server(tmp_path_factory.mktemp("s3"), BUCKET) as server:
        yield server


@pytest.fixture
def gate_to(tmp_path, monkeypatch):
    """Makes the way to a server, for libraries with that environment, which forget earlier tests."""
    gates = []

    def make(server, environment):
        if not server.alive:
            server.start()
        gate = BucketGate(server.port)
        gates.append(gate)
        for name, value in environment(gate.port).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv(CACHE_DIR, str(tmp_path / "cache"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
        monkeypatch.setenv(STORAGE_SECONDS, "60")
        _forget()
        return gate

    yield make
    _forget()
    for gate in gates:
        gate.close()


@pytest.fixture
def gate(_server, gate_to):
    return gate_to(_server, s3_environment)


@pytest.fixture
def server(_server, gate):
    return _server


@pytest.fixture
def dies_until_missed():
    """Kills a server, which is started again when somebody meets its gate; returns whether that happened."""

    def kill(server, gate):
        server.kill()
        met = threading.Event()

        def back(method, path, number):
            if met.is_set():
                return ""
            met.set()
            threading.Thread(target=server.start).start()
            return "503"

        gate.fault = back
        return lambda: met.is_set() and server.kills > 0

    return kill


@pytest.fixture
def bucket(request, gate):
    """A place of its own for each test."""
    name = request.node.name.translate(str.maketrans("[]/ ", "----"))
    return f"s3://{BUCKET}/{name}"


def _forget():
    remote._opened.cache_clear()
    remote._granted.clear()
    blocks.cache.cache_clear()
