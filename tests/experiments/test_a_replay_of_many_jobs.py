"""`python -m experiments trace`, small: what it writes, and who wins."""

from __future__ import annotations

import csv

from experiments.__main__ import main
from experiments.trace import COLUMNS


def test_all_rules_on_our_own_workload_with_table_csv_and_figure(tmp_path, capsys):
    assert main(["trace", "--jobs=10", "--slots=8", "--seeds", "1", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    with (tmp_path / "trace.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    took: dict[str, list[float]] = {}
    for row in rows:
        took.setdefault(row["policy"], []).append(float(row["ended"]) - float(row["submitted"]))
    assert {rule: len(times) for rule, times in took.items()} == dict.fromkeys(took, 10)
    assert sum(took["speed"]) < min(sum(took["greedy"]), sum(took["rigid"]))
    assert f"| speed | {sum(took['speed']) / 10:,.0f} s |" in said
    assert (tmp_path / "trace.svg").read_text().startswith("<svg")
    assert (tmp_path / "trace.md").read_text() in said


def test_workloads_of_others_are_shown_beside_what_was_published(tmp_path, capsys):
    file = tmp_path / "mine.csv"
    file.write_text("name,time,workers,seconds\na,0,2,900\nb,60,2,900\n")
    assert main(["trace", "--slots=4", "--workload", str(file), "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "mine: 2 jobs, 4 slots" in said
    assert "| Pollux, published (may change the batch) | 2,751 s |" in said


def test_a_workload_that_cannot_be_read_is_named(tmp_path, capsys):
    file = tmp_path / "bad.csv"
    file.write_text("name\na\n")
    assert main(["trace", "--workload", str(file), "--out", str(tmp_path)]) != 0
    assert "bad.csv: expected the columns" in capsys.readouterr().err
