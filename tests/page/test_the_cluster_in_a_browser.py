"""The cluster's page in a real browser: jobs with their reasons, and text of others stays text."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from edl_allreduce.cluster.kubernetes.watching import Changed, Listed
from edl_allreduce.controller.mirror import ALL, JOBS, Mirror
from edl_allreduce.controller.page import ClusterPage
from edl_allreduce.master.managed import sized_by

from .builders import status

pytestmark = pytest.mark.programs


def job(name: str, version: int, ready: int, reason: str) -> dict:
    return {
        "apiVersion": JOBS.api_version, "kind": JOBS.kind,
        "metadata": {"namespace": "team", "name": name, "uid": name, "resourceVersion": str(version)},
        "spec": {"workers": {"min": 1, "max": 8}},
        "status": {"phase": "Running", "workers": {"ready": ready, "target": 6}, "plan": {"reason": reason}},
    }  # fmt: skip


NODE = {
    "metadata": {"name": "n0"}, "spec": {},
    "status": {"allocatable": {"cpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]},
}  # fmt: skip


@pytest.fixture
def served() -> Iterator[tuple[str, Mirror, asyncio.AbstractEventLoop]]:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    mirror = Mirror()

    async def start() -> tuple[ClusterPage, int]:
        for collection in ALL:
            mirror.hear(collection, Listed([NODE] if collection.kind == "Node" else [], 0.0))
        mirror.hear(JOBS, Changed(job("digits", 1, 4, "4→6: +31 % speed, <b>saves</b> 9 min")))
        page = ClusterPage(mirror, "me")
        return page, await page.start(0)

    page, port = asyncio.run_coroutine_threadsafe(start(), loop).result(30)
    yield f"127.0.0.1:{port}", mirror, loop
    asyncio.run_coroutine_threadsafe(page.stop(), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)


def test_jobs_and_the_plan_are_shown_and_stay_up_to_date(served, open_tab):
    address, mirror, loop = served
    tab = open_tab(f"http://{address}/")
    row = tab.page.locator(".jobs tbody tr")
    expect(row).to_contain_text("team/digits")
    expect(row).to_contain_text("4→6: +31 % speed, <b>saves</b> 9 min")
    expect(row).to_contain_text("4 of 6")
    expect(tab.page.locator(".tile", has_text="Workers").locator(".value")).to_have_text("4")
    chart = tab.page.locator("figure", has_text="Workers per job")
    expect(chart).to_contain_text("4")
    loop.call_soon_threadsafe(mirror.hear, JOBS, Changed(job("digits", 2, 6, "stays at 6")))
    expect(row).to_contain_text("6 of 6")
    expect(row).to_contain_text("stays at 6")
    found = Axe().run(tab.page)
    assert found.violations_count == 0, found.generate_report()
    tab.check(address)


def test_a_job_whose_size_the_controller_keeps_has_no_button_that_would_be_refused(stage, open_tab):
    pod = {"metadata": {"namespace": "team", "labels": {"elasticdl-job-name": "digits"}}}
    page = open_tab(stage(status, [], about=sized_by(pod)).url).page
    expect(page.get_by_role("button", name="Stop…")).to_be_visible()
    expect(page.get_by_role("button", name="Scale…")).to_be_hidden()
    expect(page.get_by_text("kubectl scale tj digits -n team --replicas=…")).to_have_count(1)
