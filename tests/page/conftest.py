"""A browser, and a job's page without the job.

Debian's Chromium is used where there is one. As root it is installed once (`make test` in CI does); elsewhere
these tests are skipped with the reason, and with CI=true they fail instead.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from edl_allreduce.core.protocol import Command
from edl_allreduce.core.status import EventRecord, JobStatus
from edl_allreduce.master.web.feed import Feed
from edl_allreduce.master.web.server import PageServer
from edl_allreduce.web.guard import page_url
from kubelab import tiers

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    f"--{flag}"
    for flag in (
        "no-sandbox",
        "disable-gpu",
        "disable-quic",
        "no-first-run",
        "disable-background-networking",
        "disable-component-update",
        "disable-sync",
    )
]
TOKEN = "secret"


def chromium() -> str:
    return next((path for name in PROGRAMS if (path := shutil.which(name))), "")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """For one module: while it is there, no other test of this thread can run a loop of its own."""
    if not chromium():
        tiers.install(["chromium", "fonts-dejavu-core"])
    if not chromium():
        why = "no Chromium is here: apt-get install chromium"
        pytest.fail(why) if os.environ.get("CI", "").lower() in ("true", "1") else pytest.skip(why)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield started
        started.close()


@dataclass
class Tab:
    """One page of the browser, which remembers what no page should do."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    """Errors and warnings of its console."""
    asked: set[str] = field(default_factory=set)
    """Hosts that it sent requests to."""

    def check(self, host: str) -> None:
        assert self.complaints == []
        assert self.asked <= {host}, "nothing is asked of anybody else"


@pytest.fixture
def open_tab(browser: Browser) -> Iterator[Callable[..., Tab]]:
    contexts = []

    def opened(url: str, **settings: Any) -> Tab:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **settings})
        contexts.append(context)
        tab = Tab(context.new_page())
        tab.page.set_default_timeout(60_000)
        tab.page.on(
            "console", lambda m: tab.complaints.append(m.text) if m.type in ("error", "warning") else None
        )
        tab.page.on("pageerror", lambda error: tab.complaints.append(str(error)))
        tab.page.on("request", lambda r: tab.asked.add(r.url.split("/")[2]) if "://" in r.url else None)
        tab.page.goto(url)
        return tab

    yield opened
    for context in contexts:
        context.close()


@dataclass
class Stage:
    """The page of a job that is played: what it is told, and what it was told to do."""

    address: str
    feed: Feed
    loop: asyncio.AbstractEventLoop
    commands: list[Command]

    @property
    def url(self) -> str:
        return page_url(self.address, TOKEN)

    def tell(self, record: EventRecord) -> None:
        self.loop.call_soon_threadsafe(self.feed.tell, record)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.feed.close)


@pytest.fixture
def stage() -> Iterator[Callable[..., Stage]]:
    """Serve a played job from another thread, as a browser and its test need it."""
    ends: list[Callable[[], None]] = []

    def begin(
        shown: Callable[[], JobStatus],
        history: list[EventRecord],
        token: str = TOKEN,
        about: dict[str, str] | None = None,
    ) -> Stage:
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()

        async def start() -> tuple[Stage, PageServer]:
            commands: list[Command] = []

            async def answer(command: Command) -> JobStatus:
                commands.append(command)
                return shown()

            feed = Feed(shown, history=history, about=lambda: about or {})
            server = PageServer(feed, answer, token)
            port = await server.start("127.0.0.1", 0)
            feed.start()
            return Stage(f"127.0.0.1:{port}", feed, loop, commands), server

        made, server = asyncio.run_coroutine_threadsafe(start(), loop).result(30)

        def end() -> None:
            asyncio.run_coroutine_threadsafe(server.stop(), loop).result(30)
            loop.call_soon_threadsafe(loop.stop)

        ends.append(end)
        return made

    yield begin
    for end in ends:
        end()
