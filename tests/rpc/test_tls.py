"""With a certificate the master's port is encrypted, and only the right master is believed."""

from __future__ import annotations

import asyncio
import threading

import grpc
import pytest

from edl_allreduce.cluster.kubernetes.credentials import make_credentials
from edl_allreduce.core import protocol
from edl_allreduce.core.status import JobStatus
from edl_allreduce.errors import MasterUnreachable, UsageError
from edl_allreduce.rpc import codec
from edl_allreduce.rpc.client import command
from edl_allreduce.rpc.identity import Tls
from edl_allreduce.rpc.server import SERVICE, MasterServer


@pytest.fixture(scope="module")
def credentials():
    return make_credentials()


@pytest.fixture
def address(credentials):
    async def attend(requests, peer):
        async for _ in requests:
            yield protocol.Release()

    async def answer(message):
        return JobStatus("safe", "Training", 1, 1, 1, 0, 0, 0.0, 0.0, 0.0, "", 0.0, [], [])

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start():
        server = MasterServer(credentials.token, attend, answer)
        port = await server.start("127.0.0.1", 0, Tls(credentials.certificate, credentials.private_key))
        return server, port

    server, port = asyncio.run_coroutine_threadsafe(start(), loop).result(30)
    yield f"127.0.0.1:{port}"
    asyncio.run_coroutine_threadsafe(server.stop(0), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(30)


def test_who_has_the_jobs_certificate_and_token_is_answered(address, credentials):
    status = command(address, credentials.token, protocol.Ask(), certificate=credentials.certificate)
    assert status.job_name == "safe"


def test_another_jobs_certificate_does_not_do(address, credentials):
    other = make_credentials()
    with pytest.raises(MasterUnreachable):
        command(address, credentials.token, protocol.Ask(), certificate=other.certificate, timeout=3)


def test_nobody_is_answered_in_clear(address, credentials):
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as error:
        call = channel.unary_unary(f"/{SERVICE}/Command", codec.encode)
        call(protocol.Ask(), metadata=[("authorization", f"Bearer {credentials.token}")], timeout=10)
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE


def test_the_certificate_of_the_token_is_not_that_of_the_job(address, credentials):
    with pytest.raises(UsageError, match="refused"):
        command(address, credentials.token, protocol.Ask(), timeout=10)


def test_two_jobs_never_share_credentials(credentials):
    other = make_credentials()
    assert other.token != credentials.token
    assert other.private_key != credentials.private_key
