"""Medians, ratios within a round, and the section of the document that they are written to."""

from __future__ import annotations

import argparse
import math
from types import SimpleNamespace

import pytest

from benchmarks import churn
from benchmarks.__main__ import BEGIN, END, write
from benchmarks.checkpoint import stall_and_loss
from benchmarks.contestants import Hosts
from benchmarks.frame import Figure, Report
from benchmarks.marks import Mark, Marker, read_marks, steps_per_second
from benchmarks.reform import pause_between


def test_a_figure_shows_its_median_and_its_spread():
    assert Figure.of([3.0, 1.0, 2.0]).text("{:.0f}") == "2 (1 … 3)"
    assert Figure.of([1.5]).text("{:.0f} ms", 1000) == "1500 ms"
    assert Figure.of([]).text() == "-"
    assert math.isnan(Figure.of([]).median)


def test_a_ratio_is_taken_within_each_round():
    """A machine that was slow in the second round was slow for both."""
    assert Figure.of([10.0, 1.0]).over(Figure.of([5.0, 0.5])).values == (2.0, 2.0)


def test_sides_with_different_rounds_are_compared_by_their_medians():
    assert Figure.of([1.0, 2.0, 3.0]).over(Figure.of([4.0])).values == (0.5,)
    assert Figure.of([1.0]).over(Figure.of([])).values == ()


def test_the_results_section_of_a_document_is_replaced(tmp_path):
    document = tmp_path / "benchmarks.md"
    document.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    report = Report("steady", "steps/s", ("", "ours"), rows=[("a | b", "1")], verdict="ours / theirs = 1.0")
    write(document, [report])
    text = document.read_text()
    assert text.startswith("before\n") and text.endswith("after\n")
    assert "old" not in text
    assert "| a \\| b | 1 |" in text and "**ours / theirs = 1.0**" in text


def test_a_document_without_a_results_section_is_left_alone(tmp_path):
    document = tmp_path / "other.md"
    document.write_text("text\n")
    with pytest.raises(SystemExit, match="no results section"):
        write(document, [])
    assert document.read_text() == "text\n"


def test_marks_are_on_disk_as_soon_as_they_are_made(tmp_path):
    marker = Marker(tmp_path)
    for step in range(3):
        marker.mark(step, 2)
    (marks,) = read_marks(tmp_path).values()
    assert [(mark.step, mark.size) for mark in marks] == [(0, 2), (1, 2), (2, 2)]


def test_the_pace_leaves_the_first_steps_out():
    marks = [Mark(now, step, 2) for step, now in enumerate([0.0, 100.0, 101.0, 102.0])]
    assert steps_per_second(marks, warm_up=1) == 1.0


def test_a_pause_lies_between_the_last_step_of_one_ring_and_the_first_of_the_next():
    marks = [Mark(1.0, 1, 3), Mark(2.0, 2, 3), Mark(5.5, 2, 2), Mark(6.0, 3, 2)]
    assert pause_between(marks, 3, 2) == 3.5
    assert pause_between(marks[:2], 3, 2) is None


def test_a_stall_is_what_the_step_after_a_checkpoint_took_longer():
    """Steps of 1 s, a checkpoint after each fourth: 5 s more for the next step, 1 s for the one after it."""
    ends = [0.0]
    for step in range(1, 12):
        ends.append(ends[-1] + 1.0 + {0: 5.0, 1: 1.0}.get(step % 4 if step >= 4 else 2, 0.0))
    assert stall_and_loss(ends, every=4) == (5.0, 6.0)


def test_the_discovery_script_names_the_hosts_of_the_moment(tmp_path):
    import subprocess

    hosts = Hosts(tmp_path, ["localhost"])
    hosts.are(["localhost", "127.1"])
    said = subprocess.run([str(hosts.script)], capture_output=True, text=True, check=True).stdout
    assert said == "localhost:1\n127.1:1\n"


def test_a_kill_that_killed_nobody_is_not_counted(monkeypatch):
    now, answers, asked = 0.0, iter([True, False, True]), []

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    def kill() -> bool:
        asked.append(now)
        return next(answers)

    monkeypatch.setattr(churn, "clock", SimpleNamespace(wall=lambda: now, sleep=sleep))
    settings = argparse.Namespace(undisturbed=10.0, seconds=60.0, every=20.0)
    *_, kills = churn.with_kills(settings, kill)
    assert kills == 2 and asked == [10.0, 30.0, 50.0]
