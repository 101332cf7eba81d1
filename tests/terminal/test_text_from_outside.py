"""Hostile text through every table, event line and report: it is shown, never obeyed."""

from __future__ import annotations

import io
import logging

import pytest

from edl_allreduce import outside

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
HARMLESS_CONTROLS = {"\n"}


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
    harmless(shown.replace("\t", " "))
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
    harmless(outside.LogFormatter("%(message)s").format(record).replace("\t", " "))
