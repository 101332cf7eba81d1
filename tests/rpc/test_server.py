"""The master's door: only who has the token gets in, and only messages that we know."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager

import grpc
import pytest

from edl_allreduce.core import protocol
from edl_allreduce.core.protocol import Plan, Seat
from edl_allreduce.core.status import JobStatus
from edl_allreduce.errors import MasterUnreachable, UsageError
from edl_allreduce.rpc import codec
from edl_allreduce.rpc.client import WorkerStream, _channel, command
from edl_allreduce.rpc.identity import tls_of
from edl_allreduce.rpc.server import SERVICE, MasterServer

SEAT = Seat("uid", 7, "127.0.0.1")
HELLO = protocol.Hello(SEAT, version="0")


def status(name: str) -> JobStatus:
    numbers = dict.fromkeys(("wanted", "minimum", "generation", "step", "total_steps"), 0)
    rates = dict.fromkeys(("loss", "records_per_second", "steps_per_second", "elapsed"), 0.0)
    return JobStatus(job_name=name, phase="", waiting_for="", workers=[], events=[], **numbers, **rates)


@contextmanager
def serving(attend, answer=None):
    """The address of a server with these answers, and how to end it as a kill would."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def run(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(30)

    async def start():
        server = MasterServer("secret", attend, answer)
        return server, await server.start("127.0.0.1", 0)

    server, port = run(start())
    yield f"127.0.0.1:{port}", lambda: run(server.stop(0))
    run(server.stop(0))
    loop.call_soon_threadsafe(loop.stop)
    thread.join(30)


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

    with serving(attend, answer) as (address, _):
        yield address, heard


def test_a_worker_with_the_token_hears_the_plan(master):
    address, heard = master
    told = list(WorkerStream(address, "secret", HELLO))
    assert [m.plan.generation for m in told] == [1]
    assert heard == [HELLO]


def test_a_worker_knows_when_its_master_hung_up_in_order(master):
    address, _ = master
    stream = WorkerStream(address, "secret", HELLO)
    list(stream)
    assert stream.clean


def test_a_worker_knows_when_its_master_died_on_the_line():
    async def attend(requests, peer):
        yield protocol.Welcome()
        await asyncio.Event().wait()

    with serving(attend) as (address, die):
        stream = WorkerStream(address, "secret", HELLO)
        words = iter(stream)
        assert next(words) == protocol.Welcome()
        stream.close()  # all is said, and nobody has heard it yet
        die()
        assert list(words) == [] and not stream.clean


def test_a_connection_that_the_master_ended_leaves_no_thread_behind(master):
    address, _ = master
    list(WorkerStream(address, "secret", HELLO))  # what gRPC starts once stays
    before = set(threading.enumerate())
    for _ in range(4):
        list(WorkerStream(address, "secret", HELLO))
    for thread in set(threading.enumerate()) - before:
        thread.join(30)
        assert not thread.is_alive(), thread


def test_a_worker_with_the_masters_certificate_and_another_token_is_refused_with_a_cure(master):
    address, heard = master
    with pytest.raises(MasterUnreachable, match="EDL_JOB_TOKEN"):
        list(WorkerStream(address, "guess", HELLO, tls_of("secret").certificate))
    assert heard == []


def test_a_worker_says_its_token_to_nobody_but_the_master(master, caplog):
    """It cannot know whether it is wrong itself, or somebody took the master's port: it tries again."""
    address, heard = master
    assert list(WorkerStream(address, "guess", HELLO)) == []
    assert heard == [] and "is not the master" in caplog.text and "EDL_JOB_TOKEN" in caplog.text


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
    with _channel(address, "secret", "") as channel:
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
