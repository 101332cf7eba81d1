"""The page in a real browser: a played job is shown, and what people click reaches its master."""

from __future__ import annotations

import json

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from edl_allreduce.core import events
from edl_allreduce.core.goodput import GoodputReport, WorkerGoodput
from edl_allreduce.core.protocol import DrainWorker, NoteKind, Scale, StopJob
from edl_allreduce.core.status import Tally
from edl_allreduce.master.web.feed import Feed, encode

from .builders import history, long_history, record, status, worker

pytestmark = pytest.mark.programs

SPENT = GoodputReport(
    wall=20.0,
    seconds={"productive_step": 15.0, "program_startup": 4.0, "reform_join": 1.0},
    worker_wall=40.0,
    worker_seconds={"productive_step": 30.0, "program_startup": 8.0, "capacity_missing": 2.0},
    reforms={"loss": {"reform_join": 1.0}},
    workers=[
        WorkerGoodput(0, 20.0, {"productive_step": 16.0, "program_startup": 4.0}),
        WorkerGoodput(1, 18.0, {"productive_step": 14.0, "program_startup": 4.0}, gone=True),
    ],
)
DISTURBED = history(
    (0.0, events.WorkerLaunched(0)),
    (0.0, events.WorkerLaunched(1)),
    (4.0, events.WorkerReady(0)),
    (4.5, events.WorkerReady(1)),
    (5.0, events.RingPlanned(1, (0, 1), False, "all are ready")),
    (9.0, events.ModelEvaluated(50, {"accuracy": 0.9})),
    (12.0, events.WorkerExited(1, "disrupted", "was ended by SIGKILL")),
    (12.0, events.RingPlanned(2, (0,), True, "worker 1 was ended by SIGKILL")),
    (12.1, events.RingReformed(0, 2, 1, 0.02, 0.01, 0.03, 0.01, 0.01)),
)
SHOWN = status(
    goodput=SPENT,
    tally=Tally(100, 5000, 15.0, [0.08], 1),
    workers=[
        worker(0, compute_seconds=0.05, best_rank_score=0.5, own_best_score=0.8, node="spot-7"),
        worker(2, rank=-1),
    ],
)


def shown():
    return SHOWN


def test_the_page_shows_the_job_and_nothing_goes_wrong(stage, open_tab):
    job = stage(shown, DISTURBED)
    tab = open_tab(job.url)
    page = tab.page
    expect(page.get_by_role("heading", level=1)).to_have_text("digits")
    expect(page.locator(".phase")).to_have_text("Training")
    expect(page.locator(".tile", has_text="Goodput").locator(".value")).to_have_text("75 %")
    expect(page.locator("#spent + div .bar")).to_have_count(2)
    expect(page.locator(".log li")).to_have_count(len(DISTURBED))
    label = page.locator("canvas.lanes").get_attribute("aria-label")
    assert label is not None and "2 workers, 1 of them alive, 1 pause" in label
    assert page.url == f"http://{job.address}/", "the token is no longer in the address bar"
    tab.check(job.address)


def test_a_worker_has_its_node_two_scores_and_its_own_goodput_also_when_it_is_gone(stage, open_tab):
    page = open_tab(stage(shown, DISTURBED).url).page
    row = page.get_by_role("region", name="Table of workers").locator("tbody tr").first
    for words in ("spot-7", "50 ms", "50 %", "80 %"):
        expect(row).to_contain_text(words)
    expect(page.locator(".cause")).to_contain_text("a worker was lost")
    page.get_by_text("Each worker's own time").click()
    lives = page.get_by_role("region", name="Table of each worker's time").locator("tbody tr")
    expect(lives).to_have_count(2)
    expect(lives.nth(1)).to_contain_text("gone")
    expect(lives.nth(1)).to_contain_text("78 %")
    expect(lives.nth(1)).to_contain_text("start of programs: 4.0 s")


def test_what_happens_is_there_a_moment_later_without_a_reload(stage, open_tab):
    job = stage(shown, DISTURBED)
    page = open_tab(job.url).page
    expect(page.locator(".log li")).to_have_count(len(DISTURBED))
    page.evaluate("window.sameDocument = true")
    job.tell(record(10, events.WorkerLaunched(2), 12.5))
    expect(page.locator(".log li").first).to_contain_text("worker 2 starts")
    assert page.evaluate("window.sameDocument")
    job.tell(record(11, events.WorkerExited(2, "out of memory", "ran out of memory"), 13.0))
    expect(page.locator("[aria-live=polite]")).to_have_text("worker 2 ran out of memory")


def test_a_pause_opens_into_its_phases_and_stays_open(stage, open_tab):
    job = stage(shown, DISTURBED)
    page = open_tab(job.url).page
    pause = page.locator("details[data-generation='2']")
    expect(pause).to_contain_text("a worker was lost")
    pause.locator("summary").click()
    expect(pause.get_by_role("table")).to_contain_text("first step")
    expect(pause).to_contain_text("Generation 2, a ring of 1: worker 1 was ended by SIGKILL")
    job.tell(record(10, events.RingReformed(3, 2, 1, 0.5, 0.01, 0.03, 0.01, 0.01), 12.5))
    expect(pause).to_contain_text("2 survivors")
    expect(pause).to_have_attribute("open", "")


def test_buttons_ask_first_and_then_command(stage, open_tab):
    job = stage(shown, DISTURBED)
    page = open_tab(job.url).page
    page.get_by_role("button", name="Scale…").click()
    dialog = page.get_by_role("dialog", name="Scale the job")
    dialog.get_by_label("Workers").fill("4")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_have_count(0)
    assert job.commands == []
    page.get_by_role("button", name="Scale…").click()
    dialog.get_by_label("Workers").fill("4")
    dialog.get_by_role("button", name="Scale").click()
    expect(dialog).to_have_count(0)
    page.get_by_role("button", name="Drain worker 0").click()
    page.get_by_role("dialog").get_by_role("button", name="Drain worker 0").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_role("button", name="Stop…").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop the job").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert job.commands == [Scale(4), DrainWorker(0), StopJob("asked on the job's page")]


def test_the_keyboard_is_enough(stage, open_tab):
    job = stage(shown, DISTURBED)
    page = open_tab(job.url).page
    page.get_by_role("button", name="Stop…").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.locator(".pauses summary").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator(".pauses details").first).to_have_attribute("open", "")
    page.get_by_role("button", name="Events of worker 0").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Worker", exact=True)).to_be_focused()
    assert job.commands == []


def test_events_can_be_filtered_by_words_kind_and_worker(stage, open_tab):
    page = open_tab(stage(shown, DISTURBED).url).page
    rows = page.locator(".log li")
    page.get_by_label("Filter").fill("sigkill")
    expect(rows).to_have_count(2)
    page.get_by_label("Kind").select_option("exit")
    expect(rows).to_have_count(1)
    page.get_by_label("Filter").fill("")
    page.get_by_label("Kind").select_option("")
    page.get_by_label("Worker", exact=True).select_option("1")
    expect(rows).to_have_count(4)
    expect(page.get_by_text("4 of 9 events")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(stage, open_tab, scheme):
    tab = open_tab(stage(shown, DISTURBED).url, color_scheme=scheme)
    expect(tab.page.locator(".log li")).to_have_count(len(DISTURBED))
    tab.page.locator(".pauses summary").first.click()
    found = Axe().run(tab.page).response["violations"]
    assert [f"{one['id']}: {one['nodes'][0]['html']}" for one in found if one["impact"] != "minor"] == []


def test_dark_is_dark_and_follows_the_system(stage, open_tab):
    page = open_tab(stage(shown, DISTURBED).url, color_scheme="dark").page
    paper = "getComputedStyle(document.body).backgroundColor"
    expect(page.locator(".log li")).to_have_count(len(DISTURBED))
    dark = page.evaluate(paper)
    page.emulate_media(color_scheme="light")
    assert dark == "rgb(20, 23, 28)" and page.evaluate(paper) == "rgb(246, 247, 249)"


def test_a_phone_needs_no_sideways_scrolling(stage, open_tab):
    page = open_tab(stage(shown, DISTURBED).url, viewport={"width": 360, "height": 740}).page
    expect(page.locator(".log li")).to_have_count(len(DISTURBED))
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    expect(page.get_by_role("button", name="Scale…")).to_be_in_viewport()


def test_text_from_outside_is_text(stage, open_tab):
    evil = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    told = [*DISTURBED, record(10, events.Noted(NoteKind.NOTICE, evil), 13.0)]
    named = status(job_name=evil, workers=[worker(0, host=evil)], reason=evil, flags=[f"--model_def={evil}"])
    job = stage(lambda: named, told)
    tab = open_tab(job.url)
    tab.page.on("dialog", lambda dialog: tab.complaints.append("it ran"))
    expect(tab.page.locator(".log li").first).to_contain_text(evil)
    expect(tab.page.get_by_role("heading", level=1)).to_have_text(evil)
    assert tab.page.locator("#app img, #app script").count() == 0
    tab.check(job.address)


def test_a_job_whose_workers_pull_tasks_has_a_page_too(stage, open_tab):
    told = history(
        (0.0, events.WorkerLaunched(0)), (1.0, events.WorkerReady(0)), (2.0, events.TasksMade(600, 6, 40))
    )
    pulls = status(length=None, counts="task", step=2, total_steps=6, loss=float("nan"), tally=Tally())
    job = stage(lambda: pulls, told)
    tab = open_tab(job.url)
    expect(tab.page.locator(".tile", has_text="Progress")).to_contain_text("of 6 tasks")
    expect(tab.page.locator(".tile", has_text="Loss").locator(".value")).to_have_text("\u2013")
    expect(tab.page.locator(".log li")).to_have_count(3)
    tab.check(job.address)


def test_without_its_token_the_page_stays_locked(stage, open_tab):
    job = stage(shown, DISTURBED)
    tab = open_tab(f"http://{job.address}/")
    expect(tab.page.get_by_role("heading")).to_have_text("This job's page is locked")
    tab.page.get_by_label("Token").fill("secret")
    tab.page.get_by_role("button", name="Open").click()
    expect(tab.page.get_by_role("heading", level=1)).to_have_text("digits")
    assert tab.complaints == []
    wrong = open_tab(f"http://{job.address}/#token=wrong").page
    expect(wrong.get_by_role("heading")).to_have_text("This job's page is locked")


def test_the_last_picture_stays_when_the_job_is_over(stage, open_tab):
    phase = "Training"
    job = stage(lambda: status(phase=phase, reason="200 steps" if phase == "Succeeded" else ""), DISTURBED)
    page = open_tab(job.url).page
    expect(page.locator(".phase")).to_have_text("Training")
    phase = "Succeeded"
    job.tell(record(10, events.JobEnded("Succeeded", "200 steps"), 20.0))
    job.close()
    expect(page.locator(".phase")).to_have_text("Succeeded")
    expect(page.get_by_text("the job is over")).to_be_visible()
    expect(page.get_by_role("button", name="Stop…")).to_be_disabled()


def test_ten_thousand_events_of_sixty_four_workers_stay_smooth(stage, open_tab):
    """Counted, not timed: what is drawn for one more event does not grow with those before it."""
    told = list(long_history(workers=64, count=10_000))
    crowd = status(wanted=64, workers=[worker(number) for number in range(64)])
    job = stage(lambda: crowd, told)
    tab = open_tab(job.url)
    page = tab.page
    expect(page.get_by_text(f"{len(told):,} events, the newest 150 shown")).to_be_visible()
    assert page.locator("*").count() < 4_000, "the document does not grow with the history"
    page.evaluate(
        """() => {
            window.changed = 0;
            new MutationObserver((all) => {
                for (const one of all) window.changed += one.addedNodes.length;
            }).observe(document.body, { childList: true, subtree: true });
        }"""
    )
    job.tell(record(len(told) + 1, events.WorkerDrains(0), 10_000.0))
    expect(page.locator(".log li").first).to_contain_text("worker 0 drains")
    assert page.evaluate("window.changed") < 200
    page.get_by_label("Filter").fill("sigkill")
    expect(page.locator(".log li").first).to_contain_text("SIGKILL")
    tab.check(job.address)


AGAIN = """async (update) => {
  const { Job } = await import("/static/js/job.js");
  const job = new Job();
  job.apply({ ...update, serial: 700, events: [{ ...update.events[0], serial: 700 }] });
  const before = job.events.length;
  job.apply(update);
  return [before, job.serial, job.events.length, job.lanes.size];
}"""


def test_a_master_that_knows_less_than_the_page_begins_it_anew(stage, open_tab):
    job = stage(shown, DISTURBED)
    page = open_tab(job.url).page
    expect(page.locator(".log li")).to_have_count(len(DISTURBED))
    update = json.loads(encode(Feed(shown, history=DISTURBED).update()))
    assert page.evaluate(AGAIN, update) == [1, len(DISTURBED), len(DISTURBED), 2]
