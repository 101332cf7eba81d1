"""Hostile text through every table, event line and report: it is shown, never obeyed."""

from __future__ import annotations

import io
import logging
import re
from pathlib import Path

import pytest
from rich.console import Console

from edl_allreduce import demo, logs, outside
from edl_allreduce.cli import data as data_command
from edl_allreduce.cli import events as events_command
from edl_allreduce.cli import main as cli
from edl_allreduce.cli import status as status_command
from edl_allreduce.core import protocol
from edl_allreduce.core.event_data import to_data
from edl_allreduce.core.events import RingPlanned
from edl_allreduce.core.job.lifecycle import Phase
from edl_allreduce.core.job.state import Result
from edl_allreduce.core.protocol import Seat
from edl_allreduce.core.status import EventRecord
from edl_allreduce.errors import UsageError
from edl_allreduce.master import report
from edl_allreduce.master.picture import render
from edl_allreduce.rpc import codec
from scripts import demo_cluster
from tests.terminal.statuses import LENGTH, status, worker

HOSTILE = {
    "closing tag": "[/a/b/gloo/transport/tcp/pair.cc:583] Read error",
    "markup": "[bold red]x[/] [link=http://evil]y[/link] [@click=bell]z[/]",
    "emoji code": ":smile: :skull:",
    "escapes": "\x1b[2J\x1b]0;title\x07\x1b[31mred\x1b[0m",
    "line breaks": "first\nsecond\r\nthird\x0bfourth\x85fifth\u2028sixth",
    "carriage return": "good\rbad",
    "surrogates": "data-\udcff\ud800.npy",
    "right to left": "\u202egnp.elif",
    "zero": "\x00\x7f\x9b31m",
    "huge": "x" * 1_000_000,
    "huge and many lines": "line\n" * 200_000,
    "empty": "",
    "blank": " \n\t \n",
    "backslashes": "\\[bold]\\",
}
every_hostile_text = pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
ROOT = Path(__file__).resolve().parents[2]
HARMLESS_CONTROLS = {"\n", "\t"}


def harmless(shown: str) -> None:
    """Nothing that a terminal obeys, and nothing that cannot be encoded."""
    shown.encode("utf-8")
    assert all(c.isprintable() or c in HARMLESS_CONTROLS for c in shown), ascii(shown)[:300]


@every_hostile_text
def test_a_line_is_one_line_of_bounded_length(text):
    shown = outside.line(text)
    harmless(shown)
    assert "\n" not in shown and len(shown) <= outside.LINE


@every_hostile_text
def test_a_story_keeps_its_lines_and_is_bounded(text):
    shown = outside.story(text, 1000)
    harmless(shown)
    assert len(shown) < 10 * 1000


def test_what_was_said_can_still_be_read():
    assert outside.line(HOSTILE["closing tag"]) == HOSTILE["closing tag"]
    assert outside.line("\x1b[31mred") == "\\x1b[31mred"
    assert outside.line("Grüße, 世界") == "Grüße, 世界"
    assert outside.line("why\nand how") == "why …", "more was said"
    assert outside.story("a\nb\x07") == "a\nb\\x07"


def test_a_long_story_keeps_its_beginning_and_its_end():
    shown = outside.story("begin" + "x" * 100_000 + "end", 200)
    assert shown.startswith("begin") and shown.endswith("end") and "characters left out" in shown


@every_hostile_text
def test_a_console_prints_brackets_as_brackets(text):
    out = io.StringIO()
    outside.console(out).print(outside.line(text), soft_wrap=True)
    harmless(out.getvalue())
    assert out.getvalue().rstrip() == outside.line(text).rstrip()


@every_hostile_text
def test_a_log_line_is_harmless(text):
    record = logging.LogRecord("x", logging.INFO, "f", 1, "%s: %s", ("note", text), None)
    harmless(logs.Formatter("%(message)s").format(record))


# -------------------------------------------------------------------------- every table, line and report


def hostile_status(text: str, **changes):
    return status(
        job_name=text, phase=text, waiting_for=text, reason=text, path=text, audit=text,
        metrics={text: 1.0}, metrics_step=1,
        workers=[worker(0, host=text, standing=text, activity=text), worker(1, host=text, pid=0)],
        events=[EventRecord(1, 0.0, text, text), EventRecord(2, 1.0, "note", text)], **changes,
    )  # fmt: skip


def drawn(picture) -> str:
    out = io.StringIO()
    outside.console(out).print(picture)
    return out.getvalue()


@every_hostile_text
@pytest.mark.parametrize("counts", ["step", "task"])
def test_the_live_table_shows_it(text, counts):
    picture = drawn(render(hostile_status(text, counts=counts)))
    harmless(picture)
    assert len(picture) < 50_000, "a long text does not push the rest off the screen"


@every_hostile_text
@pytest.mark.parametrize("length", [LENGTH, None])
def test_progress_and_summary_show_it(text, length):
    hostile = hostile_status(text, length=length)
    lines = [report.progress_line(hostile), *report.summary(hostile, {"Checkpoint": text})]
    for line in lines:
        harmless(line)
        assert "\n" not in line and len(line) < 3 * outside.LINE


@every_hostile_text
def test_status_events_and_list_show_it(text, capsys, monkeypatch):
    job = Known(text, hostile_status(text))
    status_command.show(job)
    events_command.print_new(job, 0)
    monkeypatch.setattr(status_command, "known_jobs", lambda _: [job])
    status_command.list_jobs("table")
    harmless(capsys.readouterr().out)


@every_hostile_text
def test_it_travels_from_worker_to_master(text):
    seat = protocol.Hello(Seat("uid", 1, text), version=text)
    for message in (seat, protocol.Failed(True, text, text), protocol.Evaluated(1, {text: 1.0}),
                    protocol.KvSet(1, text, b"\xff\x00")):  # fmt: skip
        heard = codec.decode_from_worker(codec.encode(message))
        assert type(heard) is type(message)
    assert isinstance(heard, protocol.KvSet) and heard.value == b"\xff\x00"


@every_hostile_text
def test_the_demo_reports_it(text):
    reform = protocol.Reformed(1, 2, 0.1, 0.1, 0.1, 0.1, 0.1)
    result = Result(Phase.STOPPED, text, 1, text, [reform], {1: text, 2: text})
    harmless(drawn(demo.what_happened(result)))
    plan = RingPlanned(1, (0, 1), True, text)
    events = [EventRecord(1, 0.0, plan.kind, plan.text(), to_data(plan))]
    told = drawn(demo_cluster.what_happened(events))
    assert "0, 1" in told
    harmless(told)


@every_hostile_text
def test_an_error_of_the_command_shows_it(text, capsys, monkeypatch):
    def refuse(_: str) -> None:
        raise UsageError(text)

    monkeypatch.setattr(cli, "load", refuse)
    assert cli.main(["version"]) == 2
    harmless(capsys.readouterr().err)


@every_hostile_text
def test_the_bar_over_data_shows_it(text, monkeypatch):
    out = io.StringIO()
    screen = Console(file=out, force_terminal=True, color_system=None, width=200)
    monkeypatch.setattr(outside, "console", lambda file=None: screen)
    with data_command._progress(f"checking {text}", 1) as advance:
        advance(1)
    assert "checking" in out.getvalue()


def test_only_one_module_makes_consoles():
    files = [*(ROOT / "edl_allreduce").rglob("*.py"), *(ROOT / "scripts").glob("*.py")]
    makers = [path.name for path in files if re.search(r"\bConsole\(", path.read_text())]
    assert makers == ["outside.py"]


def test_an_event_of_many_lines_is_one_event(capsys):
    events = [EventRecord(1, 0.0, "failure", "a reason\n12:00:00.000  end         Succeeded")]
    events_command.print_new(Known("job", status(events=events)), 0)
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("failure     a reason") and second.startswith(" " * 20)


class Known:
    """A job whose master is gone and left this."""

    def __init__(self, name: str, last) -> None:
        self.name = self.where = name
        self.started = 0.0
        self._last = last

    def running(self) -> None:
        return None

    def result(self):
        return self._last

    def events(self):
        return self._last.events
