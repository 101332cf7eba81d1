"""The master's door: only who has the token gets in, and only messages that we know."""

from __future__ import annotations

import asyncio
import threading

import grpc
import pytest

from edl_allreduce.core import protocol
from edl_allreduce.core.protocol import Plan, Seat
from edl_allreduce.core.status import JobStatus
from edl_allreduce.errors import MasterUnreachable, UsageError
from edl_allreduce.rpc import codec
from edl_allreduce.rpc.client import WorkerStream, command
from edl_allreduce.rpc.server import SERVICE, MasterServer

SEAT = Seat("uid", 7, "127.0.0.1")
HELLO = protocol.Hello(SEAT, version="0")


def status(name: str) -> JobStatus:
    numbers = dict.fromkeys(("wanted", "minimum", "generation", "step", "total_steps"), 0)
    rates = dict.fromkeys(("loss", "records_per_second", "steps_per_second", "elapsed"), 0.0)
    return JobStatus(job_name=name, phase="", waiting_for="", workers=[], events=[], **numbers, **rates)


@pytest.fixture
def master():
    """A server that answers a hello with the plan of generation 1 and then hangs up."""
    heard: list[object] = []

    async def attend(requests, peer):
        async for message in requests:
            heard.append(message)
            yield protocol.NewPlan(Plan(1, (SEAT,)), True, "test")
            return

    async def answer(message):
        heard.append(message)
        return status("job")

    loop = asyncio.new_event_loop()
    server: list[MasterServer] = []

    async def start():
        server.append(MasterServer("secret", attend, answer))
        return await server[0].start("127.0.0.1", 0)

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    port = asyncio.run_coroutine_threadsafe(start(), loop).result(30)
    yield f"127.0.0.1:{port}", heard
    asyncio.run_coroutine_threadsafe(server[0].stop(0), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(30)


def test_a_worker_with_the_token_hears_the_plan(master):
    address, heard = master
    told = list(WorkerStream(address, "secret", HELLO))
    assert [m.plan.generation for m in told] == [1]
    assert heard == [HELLO]


def test_a_connection_that_the_master_ended_leaves_no_thread_behind(master):
    address, _ = master
    list(WorkerStream(address, "secret", HELLO))  # what gRPC starts once stays
    before = set(threading.enumerate())
    for _ in range(4):
        list(WorkerStream(address, "secret", HELLO))
    for thread in set(threading.enumerate()) - before:
        thread.join(30)
        assert not thread.is_alive(), thread


def test_a_worker_without_the_token_is_refused_with_a_cure(master):
    address, heard = master
    with pytest.raises(MasterUnreachable, match="EDL_JOB_TOKEN"):
        list(WorkerStream(address, "guess", HELLO))
    assert heard == []


def test_a_command_without_the_token_is_refused(master):
    address, heard = master
    assert command(address, "secret", protocol.Ask()).job_name == "job"
    with pytest.raises(UsageError, match="refused"):
        command(address, "", protocol.Ask())
    assert heard == [protocol.Ask()]


def test_a_command_to_nobody_says_so():
    with pytest.raises(MasterUnreachable, match=r"no answer from the master at 127\.0\.0\.1:9"):
        command("127.0.0.1:9", "secret", protocol.Ask(), timeout=20)


def test_bytes_that_are_no_message_are_refused(master):
    address, heard = master
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(f"/{SERVICE}/Command")
        with pytest.raises(grpc.RpcError):
            call(b"\x80\x04K\x01.", metadata=[("authorization", "Bearer secret")], timeout=20)
    assert heard == []


def test_every_message_survives_the_wire():
    plan = Plan(3, (SEAT,))
    for message in (
        protocol.NewPlan(plan, False, "why"),
        protocol.KvEntry(3, "/k", b"\x00v"),
        protocol.Release(),
    ):
        assert codec.decode_from_master(codec.encode(message)) == message
    for said in (HELLO, protocol.Out(3, 5, "broke"), protocol.KvSet(3, "/k", b"v"), protocol.Draining()):
        assert codec.decode_from_worker(codec.encode(said)) == said
