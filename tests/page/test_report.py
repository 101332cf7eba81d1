"""The report of a job: one file that needs nothing else, text for a pull request, data for a script."""

from __future__ import annotations

import json
import re

import pytest

from edl_allreduce.cli.report import data_of
from edl_allreduce.core import events
from edl_allreduce.core.goodput import GoodputReport
from edl_allreduce.core.status import EventRecord, JobStatus, Tally
from edl_allreduce.errors import JobFailed
from edl_allreduce.master.web.bundle import STATIC, program, report_page
from edl_allreduce.master.web.feed import Feed, encode
from edl_allreduce.master.web.report_text import markdown

from .builders import history, status

EVIL = "</script><script>alert(1)</script>|*_`<b>"
TOLD = history(
    (0.0, events.WorkerLaunched(0)),
    (4.0, events.WorkerReady(0)),
    (4.0, events.WorkerReady(1)),
    (5.0, events.RingPlanned(1, (0, 1), False, "all are ready")),
    (12.0, events.RingPlanned(2, (0,), True, f"worker 1 is lost {EVIL}")),
    (12.1, events.RingReformed(0, 2, 1, 0.02, 0.01, 0.03, 0.01, 0.01)),
)
ENDED = status(
    phase="Succeeded",
    reason=EVIL,
    audit="clean: 1000 records, each used once per epoch",
    tally=Tally(100, 5000, 10.0, [0.08], 1),
    goodput=GoodputReport(
        20.0, {"productive_step": 15.0, "reform_join": 5.0}, 40.0, {"productive_step": 40.0}
    ),
)


def data() -> bytes:
    return encode(Feed(lambda: ENDED, history=TOLD).update())


def test_the_file_asks_nobody_for_anything():
    page = report_page(data())
    outside = [link for link in re.findall(r'(?:src|href)="([^"]*)"', page) if not link.startswith("data:")]
    assert outside == []
    assert "default-src 'none'" in page and "unsafe-inline" not in page
    assert "import {" not in page and "\nexport " not in page


def test_no_text_of_the_job_can_leave_its_place():
    page = report_page(data())
    inside = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert json.loads(inside[0])["status"]["reason"] == EVIL
    assert page.count("<script") == 3


def test_every_module_is_in_it_once_and_no_two_use_the_same_name():
    text = program("report.js")
    names = re.findall(r"^(?:async )?(?:function\*?|class|const|let) (\w+)", text, re.MULTILINE)
    assert len(names) == len(set(names)), sorted(name for name in names if names.count(name) > 1)
    assert {"View", "Lanes", "Chart", "Log"} <= set(names)


def test_every_file_of_the_page_sets_text_and_never_markup():
    for file in sorted((STATIC / "js").glob("*.js")):
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", file.read_text()
        ), file


def test_markdown_says_what_came_of_it():
    text = markdown(json.loads(data()))
    assert text.startswith("# digits: Succeeded\n")
    assert "| Audit | clean: 1000 records, each used once per epoch |" in text
    assert "## Where the time went: 75% productive" in text
    assert "| re-form: join | 5.0 s | 25.0% |" in text
    assert "80 ms" in text


def test_markdown_keeps_text_from_outside_as_text():
    text = markdown(json.loads(data()))
    assert "<script>" not in text
    pauses = next(line for line in text.splitlines() if line.startswith("| 2 |"))
    assert len(re.findall(r"(?<!\\)\|", pauses)) == 10


@pytest.mark.programs
def test_the_report_draws_the_same_picture(open_tab, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(report_page(data()))
    tab = open_tab(path.as_uri())
    tab.page.wait_for_selector(".log li")
    assert tab.page.locator("h1").text_content() == "digits"
    assert tab.page.locator("canvas").count() >= 2
    assert tab.page.get_by_role("button", name="Stop…").count() == 0
    tab.page.locator(".pauses summary").first.click()
    tab.page.get_by_role("table").get_by_text("first step").wait_for()
    assert tab.complaints == [] and tab.asked == {""}


class Left:
    """A job of which only its history is there, or its last word as well."""

    name = "digits"

    def __init__(self, result: JobStatus | None = None, *, over: bool = True) -> None:
        self.last, self.ended = result, over

    def running(self) -> None:
        return None

    def over(self) -> bool:
        return self.ended

    def page(self) -> str:
        return ""

    def report(self) -> bytes:
        return b""

    def result(self) -> JobStatus | None:
        return self.last

    def absence(self) -> str:
        return "its master ended without a result\nTo begin again: ..."

    def history(self) -> list[EventRecord]:
        return history(
            (0.0, events.WorkerLaunched(0)),
            (4.0, events.WorkerReady(0)),
            (5.0, events.RingPlanned(3, (0,), False, "all are ready")),
            (9.0, events.ModelEvaluated(50, {"accuracy": 0.9})),
        )


def test_a_job_whose_master_was_killed_has_a_report_of_what_its_history_tells():
    told = json.loads(data_of(Left()))
    assert told["status"]["reason"] == "its master ended without a result"
    assert (told["status"]["step"], told["status"]["metrics"]) == (50, {"accuracy": 0.9})
    assert told["status"]["elapsed"] == 9.0 and len(told["events"]) == 4 and told["lanes"]
    assert "its master ended without a result" in markdown(told)


def test_a_job_whose_master_restarts_has_no_report_that_calls_it_failed():
    with pytest.raises(JobFailed, match="does not run"):
        data_of(Left(over=False))


def test_versions_in_a_report_are_never_those_of_the_machine_that_asks():
    told = json.loads(data_of(Left(status(phase="Succeeded"))))
    assert told["status"]["phase"] == "Succeeded" and told["about"] == {}
    assert Feed(status).update().about, "those of a master are"
