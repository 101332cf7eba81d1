"""The master's server as a client sees it: what it gives, to whom, and what it lets happen."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import aiohttp
import pytest

from edl_allreduce.core import events
from edl_allreduce.core.protocol import Command, DrainWorker, NoteKind, Scale, StopJob
from edl_allreduce.core.status import JobStatus
from edl_allreduce.errors import UsageError
from edl_allreduce.master.web.feed import Feed
from edl_allreduce.master.web.server import PageServer
from edl_allreduce.web import site

from .builders import history, record, status

TOKEN = {"Authorization": "Bearer secret"}


@dataclass
class Served:
    """A server on loopback and a client."""

    feed: Feed
    session: aiohttp.ClientSession
    url: str
    commands: list[Command] = field(default_factory=list)
    refuses: str = ""

    async def get(self, path: str, **headers: str) -> tuple[int, str]:
        async with self.session.get(self.url + path, headers=headers) as answer:
            return answer.status, await answer.text()

    async def post(self, path: str, body: object, **headers: str) -> tuple[int, str]:
        async with self.session.post(self.url + path, data=json.dumps(body), headers=headers) as answer:
            return answer.status, await answer.text()


def serve(story: Callable[[Served], Awaitable[None]], shown: JobStatus | None = None) -> None:
    async def run() -> None:
        known = history((0.0, events.WorkerLaunched(0)), (1.0, events.WorkerReady(0)))
        feed = Feed(lambda: shown or status(), history=known)

        async def answer(command: Command) -> JobStatus:
            if served.refuses:
                raise UsageError(served.refuses)
            served.commands.append(command)
            return status()

        server = PageServer(feed, answer, "secret", lambda: (b"edl_steps_total 5\n", "text/plain"))
        port = await server.start("127.0.0.1", 0)
        feed.start()
        async with aiohttp.ClientSession() as session:
            served = Served(feed, session, f"http://127.0.0.1:{port}")
            await story(served)
        await server.stop()

    asyncio.run(asyncio.wait_for(run(), 60))


async def updates(answer: aiohttp.ClientResponse) -> list[dict]:
    """The next server-sent event."""
    lines: list[bytes] = []
    async for line in answer.content:
        if line == b"\n":
            return lines
        lines.append(line)
    return lines


def test_the_page_and_its_files_are_for_everybody_and_hold_no_secret():
    async def story(served):
        code, text = await served.get("/")
        assert code == 200 and "<!doctype html>" in text and "secret" not in text
        assert (await served.get("/static/js/page.js"))[0] == 200
        assert (await served.get("/static/../server.py"))[0] == 404
        assert (await served.get("/static/%2e%2e/server.py"))[0] in (403, 404)

    serve(story)


@pytest.mark.parametrize("path", ["/api/state", "/api/updates"])
def test_what_happens_to_the_job_is_only_for_who_has_the_token(path):
    async def story(served):
        assert (await served.get(path))[0] == 401
        assert (await served.get(path, Authorization="Bearer wrong"))[0] == 401
        assert (await served.get("/api/state", **TOKEN))[0] == 200

    serve(story)


def test_commands_do_what_those_of_the_terminal_do():
    async def story(served):
        assert await served.post("/api/scale", {"num_workers": 4}, **TOKEN) == (200, "{}")
        assert await served.post("/api/drain", {"worker_id": 1}, **TOKEN) == (200, "{}")
        assert await served.post("/api/stop", {}, **TOKEN) == (200, "{}")
        assert served.commands == [Scale(4), DrainWorker(1), StopJob("asked on the job's page")]

    serve(story)


def test_commands_without_token_or_from_another_site_do_nothing():
    async def story(served):
        assert (await served.post("/api/stop", {}))[0] == 401
        assert (await served.post("/api/stop", {}, Origin="http://evil.example", **TOKEN))[0] == 403
        assert (await served.post("/api/stop", {}, **{"Sec-Fetch-Site": "cross-site"}, **TOKEN))[0] == 403
        assert (await served.post("/api/stop", {}, Host="evil.example", **TOKEN))[0] == 421
        assert (await served.get("/api/stop", **TOKEN))[0] == 405
        assert served.commands == []

    serve(story)


def test_no_other_site_may_read_an_answer_or_frame_the_page():
    async def story(served):
        async with served.session.get(served.url + "/", headers={"Origin": "http://evil.example"}) as answer:
            assert "Access-Control-Allow-Origin" not in answer.headers
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy and "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy

    serve(story)


def test_what_a_command_meets_comes_back_in_words():
    async def story(served):
        served.refuses = "there is no worker 9"
        assert await served.post("/api/drain", {"worker_id": 9}, **TOKEN) == (
            409,
            '{"error": "there is no worker 9"}',
        )
        served.refuses = ""
        for body in ({"num_workers": "4"}, {"num_workers": 4, "more": 1}, [], {"num_workers": 1.5}):
            code, text = await served.post("/api/scale", body, **TOKEN)
            assert code == 409 and "does not know" in text
        assert (await served.post("/api/scale", {"num_workers": "x" * 10_000}, **TOKEN))[0] == 413
        assert served.commands == []

    serve(story)


def test_who_follows_gets_everything_and_then_each_change_until_the_end():
    async def story(served):
        async with served.session.get(served.url + "/api/updates", headers=TOKEN) as answer:
            assert answer.content_type == "text/event-stream"
            first = json.loads((await updates(answer))[0].removeprefix(b"data: "))
            assert [event["serial"] for event in first["events"]] == [1, 2]
            assert first["status"]["job_name"] == "digits" and first["about"]["elasticdl"]
            served.feed.tell(record(3, events.WorkerExited(0, "disrupted", "was killed"), 2.0))
            seen: list[int] = []
            while not seen:
                seen = [
                    event["serial"]
                    for event in json.loads((await updates(answer))[0].removeprefix(b"data: "))["events"]
                ]
            assert seen == [3], "only what is new"
            served.feed.close()
            last: list[bytes] = []
            while last != [b"event: end\n", b"data: {}\n"]:
                last = await updates(answer)
                assert last, "the stream ended without saying so"

    serve(story)


def test_who_comes_back_after_a_broken_connection_gets_what_it_missed():
    async def story(served):
        async with served.session.get(served.url + "/api/updates?since=1", headers=TOKEN) as answer:
            first = json.loads((await updates(answer))[0].removeprefix(b"data: "))
            assert [event["serial"] for event in first["events"]] == [2]

    serve(story)


def test_a_loss_that_is_no_number_is_still_json():
    async def story(served):
        code, text = await served.get("/api/state", **TOKEN)
        assert code == 200 and json.loads(text)["status"]["loss"] is None

    serve(story, status(loss=math.nan))


def test_values_of_the_environment_do_not_reach_the_page():
    async def story(served):
        text = (await served.get("/api/state", **TOKEN))[1]
        assert "hunter2" not in text and "--envs=(not shown)" in text

    serve(story, status(flags=["--envs=PASSWORD=hunter2,B=3"]))


def test_monitors_need_no_token_and_may_use_any_name():
    async def story(served):
        assert await served.get("/healthz", Host="10.0.0.7") == (200, "ok\n")
        assert await served.get("/readyz", Host="some-pod.ns.svc") == (200, "ok\n")
        assert (await served.get("/metrics", Host="some-pod"))[1] == "edl_steps_total 5\n"
        served.feed.close()
        assert (await served.get("/readyz"))[0] == 503

    serve(story)


def test_a_viewer_that_reads_nothing_holds_up_nobody():
    async def story(served):
        async with served.session.get(served.url + "/api/updates", headers=TOKEN):
            for serial in range(3, 2000):
                served.feed.tell(record(serial, events.Noted(NoteKind.NOTICE, "x" * 1000), float(serial)))
            assert (await served.get("/api/state", **TOKEN))[0] == 200

    serve(story)


def test_whoever_connects_without_end_is_hung_up_on_and_the_page_still_answers(monkeypatch):
    monkeypatch.setattr(site, "MOST_CONNECTIONS", 3)

    async def story(served: Served) -> None:
        port = int(served.url.rpartition(":")[2])
        crowd = [await asyncio.open_connection("127.0.0.1", port) for _ in range(6)]
        ended = [asyncio.create_task(reader.read()) for reader, _ in crowd]
        await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
        assert 0 < sum(task.done() for task in ended) <= 3
        for _, writer in crowd:
            writer.close()
        await asyncio.wait(ended)
        assert (await served.get("/healthz"))[0] == 200

    serve(story)
