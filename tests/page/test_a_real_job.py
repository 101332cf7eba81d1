"""A job of real workers, watched and commanded in a browser, and the report that it leaves.

With SCREENSHOTS=true the picture in docs/ is taken anew.
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from playwright.sync_api import expect

from edl_allreduce.cli.main import main
from edl_allreduce.cluster.registry import LocalJobFiles
from edl_allreduce.web.guard import page_token, page_url

pytestmark = pytest.mark.training

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "page.png"
STEPS = re.compile(r"[1-9]")
LONG = 120_000
SCREENSHOTS = os.environ.get("SCREENSHOTS") == "true"


def test_who_kills_a_worker_sees_what_happened_and_what_it_cost(launch, open_tab, tmp_path, capsys):
    job = launch(name="digits", num_workers=3, num_epochs=100_000, report=tmp_path / "kept.html")
    job.wait_for("plan", "workers 0, 1, 2")
    address = LocalJobFiles(job.job_dir).running()
    assert address is not None
    tab = open_tab(page_url(address.page, page_token(address.token)), device_scale_factor=1.5)
    page = tab.page
    expect(page.locator(".tile", has_text="Progress").locator(".value")).to_have_text(STEPS, timeout=LONG)
    expect(page.locator(".tile", has_text="Ring").locator(".value")).to_have_text("3 of 3", timeout=LONG)

    job.signal(1, signal.SIGKILL)
    expect(page.locator(".log li", has_text=re.compile("^.*exit.*worker 1 .*SIGKILL"))).to_be_visible(
        timeout=LONG
    )
    pause = page.locator("details", has_text="a worker was lost").first
    expect(pause).to_be_visible(timeout=LONG)
    pause.locator("summary").click()
    expect(pause.get_by_role("table")).to_contain_text("2 survivors", timeout=LONG)

    if SCREENSHOTS:  # with a newcomer it tells more
        job.wait_for("ready", "worker 3")
    page.get_by_role("button", name="Drain worker 0").click()
    page.get_by_role("dialog").get_by_role("button", name="Drain worker 0").click()
    expect(page.locator(".log li", has_text="worker 0 drained and left")).to_be_visible(timeout=LONG)
    if SCREENSHOTS:
        page.evaluate("scrollTo(0, 0)")
        page.screenshot(path=PICTURE)
    page.get_by_role("button", name="Scale…").click()
    page.get_by_role("dialog").get_by_label("Workers").fill("1")
    page.get_by_role("dialog").get_by_role("button", name="Scale").click()
    expect(page.locator(".tile", has_text="Ring").locator(".value")).to_have_text("1 of 1", timeout=LONG)

    page.get_by_role("button", name="Stop…").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop the job").click()
    expect(page.locator(".phase")).to_have_text("Stopped", timeout=LONG)
    job.wait()
    assert [one for one in tab.complaints if "ERR_" not in one] == [], "the end of the stream is no surprise"
    assert tab.asked == {address.page}

    kept = open_tab((tmp_path / "kept.html").as_uri()).page
    expect(kept.locator("details", has_text="a worker was lost")).to_be_visible()
    assert (job.job_dir / "report.html").read_text() == (tmp_path / "kept.html").read_text()
    assert main(["report", f"--job_dir={job.job_dir}", "--format=md"]) == 0
    said = capsys.readouterr().out
    assert "each used once per epoch" in said or "clean" in said, said
