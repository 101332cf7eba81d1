"""An emulator of S3 behind a gate that can refuse, cut and delay."""

from __future__ import annotations

import pytest

from edl_allreduce.contract import CACHE_DIR, STORAGE_SECONDS
from edl_allreduce.storage import blocks, remote
from kubelab.buckets import BucketGate, BucketServer

BUCKET = "records"


@pytest.fixture(scope="session")
def _server(tmp_path_factory):
    with BucketServer(tmp_path_factory.mktemp("s3"), BUCKET) as server:
        yield server


@pytest.fixture
def gate(_server, tmp_path, monkeypatch):
    """The way to the server; clients of an earlier test are forgotten."""
    if not _server.alive:
        _server.start()
    gate = BucketGate(_server.port)
    for name, value in gate.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(CACHE_DIR, str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(STORAGE_SECONDS, "60")
    _forget()
    yield gate
    _forget()
    gate.close()


@pytest.fixture
def server(_server, gate):
    return _server


@pytest.fixture
def bucket(request, gate):
    """A place of its own for each test."""
    name = request.node.name.translate(str.maketrans("[]/ ", "----"))
    return f"s3://{BUCKET}/{name}"


def _forget():
    remote._opened.cache_clear()
    remote._granted.clear()
    blocks.cache.cache_clear()
