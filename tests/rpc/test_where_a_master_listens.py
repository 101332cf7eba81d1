"""A master is where only its own can reach it, or proves by its key that it has the token."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edl_allreduce.core import protocol
from edl_allreduce.core.status import JobStatus
from edl_allreduce.errors import MasterUnreachable
from edl_allreduce.rpc.client import command
from edl_allreduce.rpc.identity import tls_of
from edl_allreduce.rpc.server import MasterServer
from edl_allreduce.rpc.unix import LONGEST_PATH, unix_target


async def attend(requests, peer):
    async for _ in requests:
        yield protocol.Release()


async def answer(message):
    return JobStatus("here", "Training", 1, 1, 1, 0, 0, 0.0, 0.0, 0.0, "", 0.0, [], [])


@contextmanager
def listening(path: Path) -> Iterator[None]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> MasterServer:
        server = MasterServer("secret", attend, answer)
        await server.start_here(path)
        return server

    server = asyncio.run_coroutine_threadsafe(start(), loop).result(30)
    yield
    asyncio.run_coroutine_threadsafe(server.stop(0), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(30)


@pytest.mark.parametrize("folder", ["a", "d" * 120, "with spaces, 100 % and #"])
def test_a_socket_is_reached_whatever_its_directory_is_called(tmp_path, folder):
    (tmp_path / folder).mkdir()
    path = tmp_path / folder / "master.sock"
    with listening(path):
        assert path.stat().st_mode & 0o777 == 0o600
        assert command(f"unix:{path}", "secret", protocol.Ask(), timeout=30).job_name == "here"


def test_what_a_killed_master_left_is_no_obstacle(tmp_path):
    path = tmp_path / "master.sock"
    path.touch()
    with listening(path):
        assert command(f"unix:{path}", "secret", protocol.Ask(), timeout=30).job_name == "here"


def test_a_socket_of_nobody_is_a_master_that_does_not_answer(tmp_path):
    with pytest.raises(MasterUnreachable):
        command(f"unix:{tmp_path / 'master.sock'}", "secret", protocol.Ask(), timeout=5)


def test_names_that_are_plain_stay_as_they_are():
    assert unix_target("unix:/run/job/master.sock") == "unix:/run/job/master.sock"
    assert len(unix_target(f"unix:/tmp/{'../tmp/' * 30}x.sock")) < LONGEST_PATH


def test_both_ends_make_the_same_certificate_of_a_token_and_nobody_else_does():
    first = tls_of("a token")
    tls_of.cache_clear()
    assert tls_of("a token") == first
    assert tls_of("another token").certificate != first.certificate
