"""The live table of a job on terminals of all sizes."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from edl_allreduce.core import event_data, events
from edl_allreduce.core.digest import MOST_POINTS, Curve, digest, sparkline
from edl_allreduce.core.goodput import GoodputReport
from edl_allreduce.core.protocol import NoteKind
from edl_allreduce.core.status import EventRecord
from edl_allreduce.master.picture import render
from tests.terminal.statuses import status, worker

REFORMED = [events.RingReformed(i, 2, 2, 0.01, 0.0, 0.02, 0.0, 0.01 * (i + 1)) for i in (0, 2)]


def records(*told: events.Event) -> list[EventRecord]:
    return [
        EventRecord(number, 100.0 + number, event.kind, event.text(), event_data.to_data(event))
        for number, event in enumerate(told)
    ]


def busy(**changes):
    given = dict(
        wanted=3,
        losses=[2.0, 1.5, 1.0, 0.5, 0.25],
        goodput=GoodputReport(
            20.0, {"productive_step": 15.0, "program_startup": 4.0, "reform_join": 1.0},
            60.0, {"productive_step": 40.0},
        ),
        metrics={"accuracy": 0.97}, metrics_step=80,
        workers=[
            worker(0, compute_seconds=0.0521, own_best_score=0.97),
            worker(1, compute_seconds=0.1534, straggler=True, best_rank_score=0.34, own_best_score=0.41),
            worker(2),
        ],
        events=records(
            events.WorkerLaunched(0), events.WorkerLaunched(1), events.WorkerLaunched(2),
            events.RingPlanned(1, (0, 1, 2), True, "3 workers are ready", "first"),
            events.WorkerExited(1, "disrupted", "was ended by SIGKILL"), *REFORMED,
        ),
    )  # fmt: skip
    return status(**{**given, **changes})


def drawn(shown, columns: int, rows: int) -> list[str]:
    out = io.StringIO()
    console = Console(
        file=out, width=columns, height=rows, force_terminal=True, color_system=None, legacy_windows=False
    )
    console.print(render(shown))
    return out.getvalue().rstrip("\n").splitlines()


def test_eighty_by_twenty_four_has_everything():
    lines = drawn(busy(), 80, 24)
    text = "\n".join(lines)
    assert len(lines) <= 24 and all(len(line) <= 80 for line in lines)
    for words in (
        "digits · Training", "step 100 of 200 (50 %)", "epoch 6 of 10", "10 s left", "loss 0.2500 █▆▄▂▁",
        "500 records/s", "ring 3 of 3", "goodput 75 %, 67 % of worker seconds; lost: start of programs 4.0 s",
        "'accuracy': 0.97", "52.1 ms", "153.4 ms", "slow", "of best", "of own", "34 %",
        "41 %", "97 %",
        "workers 0, 1, 2 start", "was ended by SIGKILL",
        "workers 0, 2 go on in generation 2 after 0.060 s",
    ):  # fmt: skip
        assert words in text, f"{words}\n{text}"


def test_forty_columns_have_what_matters():
    lines = drawn(busy(), 40, 24)
    text = "\n".join(lines)
    assert len(lines) <= 24 and all(len(line) <= 40 for line in lines)
    for words in (
        "digits · Training", "step 100 of 200 (50 %)", "10 s left", "loss 0.2500", "goodput 75 %", "52.1 ms",
        "34 %", "re-form workers 0, 2 go on",
    ):  # fmt: skip
        assert words in text, f"{words}\n{text}"


def test_pods_have_nodes():
    pods = [worker(i, node=f"node-{i}", name=f"elasticdl-digits-worker-{i}") for i in range(2)]
    text = "\n".join(drawn(busy(workers=[*pods, worker(2, standing="starting", rank=-1)]), 80, 24))
    assert " node " in text and "node-1" in text and "127.0.0.1" not in text


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (120, 50), (40, 24), (40, 15), (200, 20)])
def test_many_workers_and_events_do_not_push_the_rest_off_the_screen(columns, rows):
    many = busy(
        workers=[worker(i, compute_seconds=0.05) for i in range(64)],
        events=records(*(events.WorkerReady(i) if i % 2 else events.WorkerDrains(i) for i in range(200))),
    )
    lines = drawn(many, columns, rows)
    assert len(lines) <= max(rows, 16) and all(len(line) <= columns for line in lines)
    assert any("more: " in line and " ring" in line for line in lines)
    assert any("worker 199 is ready" in line for line in lines), "the last event is always there"


def test_a_digest_tells_the_same_of_several_workers_once():
    told = [
        events.WorkerConnected(0, "a"), events.WorkerConnected(1, "b"), events.WorkerReady(1), *REFORMED,
        events.Noted(NoteKind.POD, "no node has room", 3), events.Noted(NoteKind.POD, "no node has room", 4),
        events.JobWaits("for more"), events.JobWaits("for more"), events.WorkerReady(7),
    ]  # fmt: skip
    assert [line.text for line in digest(records(*told))] == [
        "workers 0, 1 connected",
        "worker 1 is ready",
        "workers 0, 2 go on in generation 2 after 0.060 s",
        "workers 3, 4: no node has room",
        "for more (2 times)",
        "worker 7 is ready",
    ]


def test_a_sparkline_is_as_wide_as_there_is_room():
    assert sparkline([3, 2, 1], 10) == "█▅▁"
    assert sparkline(list(range(100)), 4) == "▁▃▆█" and sparkline([1], 10) == ""
    assert sparkline([1, float("nan"), 1], 5) == "▁▁"
    assert sparkline([1000, 100, 10, 1], 4) == "█▆▃▁", "steep curves are drawn on a logarithmic scale"


def test_a_curve_keeps_few_points_of_a_long_job():
    curve = Curve()
    for step in range(100_000):
        curve = curve.add(step, 1.0 / (step + 1))
    assert MOST_POINTS / 2 <= len(curve.points) <= MOST_POINTS
    assert list(curve.points) == sorted(curve.points, reverse=True)
