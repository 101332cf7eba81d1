"""From samples to the published columns and figures; and the table beside what was published."""

from __future__ import annotations

import argparse
import json

import pytest

from experiments import jobs, live, nginx, report
from experiments.collector import COLUMNS, Sample, between, jain, load, workers_per_job
from experiments.lab import PUBLISHED, cpus


def sample(time: float, *workers: int, service: int = 0) -> Sample:
    running = sum(size > 0 for size in workers)
    return Sample(time, 0.05 * sum(workers), workers, len(workers), running, service, (0.1,) * len(workers))


def test_the_cluster_is_as_large_as_the_published_one():
    assert sum(one.count for one in PUBLISHED) == 133
    assert abs(cpus(PUBLISHED) - 2340) < 10


def test_a_sample_has_the_published_columns():
    row = sample(2.0, 3, 0, service=7).row()
    assert tuple(row) == COLUMNS
    assert (row["cpu %"], row["running trainers"], row["jobs pending"], row["jobs running"]) == (
        "15.00", 3, 1, 1,
    )  # fmt: skip
    assert (row["nginx pods"], row["trainers per job"]) == (7, "3|0")


def test_jain_of_the_published_run():
    """Its six rich and fourteen poor jobs."""
    assert jain([34.3] * 6 + [3.3] * 14) == pytest.approx(0.44, abs=0.005)
    assert jain([5.0] * 20) == pytest.approx(1.0)
    assert jain([0.0, 0.0]) == 0.0


def test_means_are_taken_between_two_times():
    samples = [sample(0, 0, 0), sample(10, 4, 0), sample(20, 6, 4)]
    late = between(samples, 10, 30)
    assert workers_per_job(late) == [5, 2]
    assert load(late) == pytest.approx(0.35)


@pytest.mark.parametrize("module, name", [(jobs, "jobs"), (nginx, "nginx")])
def test_runs_of_several_commands_come_into_one_table_and_figure(module, name, tmp_path, capsys):
    for policy, value in (("ours", 12.5), ("greedy", 40.0)):
        figures = {**dict.fromkeys(module.ROWS, value), "pace": 0.5, "machine": 0.7}
        (tmp_path / f"{name}-{policy}.json").write_text(json.dumps(figures))
        rows = [sample(t, 1, 2, service=3).row() for t in (0.0, 2.0)]
        report.write_csv(tmp_path / f"{name}-{policy}.csv", COLUMNS, rows)
    live.conclude(name, argparse.Namespace(out=tmp_path), module.ROWS, module.panels)
    said = capsys.readouterr().out
    assert "| published, on | published, off | ours | greedy | to reach |" in said
    assert "| 12.5 | 40.0 |" in said
    assert (tmp_path / f"{name}.svg").read_text().count("<path") >= 4 * 2


def test_a_policy_that_does_not_exist_is_named(tmp_path, capsys):
    from experiments.__main__ import main

    assert main(["jobs", "--policies=best", "--out", str(tmp_path)]) != 0
    assert "unknown policy 'best'" in capsys.readouterr().err
