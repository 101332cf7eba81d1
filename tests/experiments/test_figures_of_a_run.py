"""From samples to the published columns and figures; and the table beside what was published."""

from __future__ import annotations

import argparse
import contextlib
import json
import os

import pytest

from experiments import jobs, live, nginx, report
from experiments.collector import COLUMNS, Sample, between, jain, load, workers_per_job
from experiments.lab import PUBLISHED, Nodes, Shape, cpus, that_ends_with_us
from kubelab import eventually


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
    live.conclude(name, tmp_path, module.ROWS, module.panels)
    said = capsys.readouterr().out
    assert "| published, on | published, off | ours | greedy | to reach |" in said
    assert "| 12.5 | 40.0 |" in said
    assert (tmp_path / f"{name}.svg").read_text().count("<path") >= 4 * 2


def test_a_policy_that_does_not_exist_is_named(tmp_path, capsys):
    from experiments.__main__ import main

    assert main(["jobs", "--policies=best", "--out", str(tmp_path)]) != 0
    assert "unknown policy 'best'" in capsys.readouterr().err


def test_in_simulated_time_ours_is_even_where_the_published_rule_is_not(tmp_path, capsys):
    """Four jobs on six machines: quick, and the same for everybody."""
    nodes = (Nodes(6, 16),)
    found = {}
    for policy in (live.OURS, live.GREEDY, live.RIGID):
        shape = Shape(12, 12) if policy == live.RIGID else Shape(2, 12)
        found[policy] = live.rehearse(nodes, "jobs", policy, jobs.CaseOne(shape, 4, 0.4), tmp_path)
    assert found["ours"]["jain"] > 0.97 > found["greedy"]["jain"]
    assert found["ours"]["load"] > found["greedy"]["load"]
    assert found["ours"]["pending"] <= found["greedy"]["pending"] < found["rigid"]["pending"]
    assert found["rigid"]["waiting"] > 0 == found["ours"]["waiting"]


def test_in_simulated_time_a_service_has_what_it_wants_at_once(tmp_path):
    nodes, script = (Nodes(6, 16),), nginx.CaseTwo(Shape(1, 10), jobs=2, pace=0.4, scale=0.05)
    found = live.rehearse(nodes, "nginx", live.OURS, script, tmp_path)
    assert found["slowest"] <= 5
    assert found["settled"] > 80


def test_a_step_that_never_reaches_its_size_has_no_length(tmp_path, capsys, monkeypatch):
    """A service that is larger than all machines together: no rule can make room for it."""
    monkeypatch.setattr(nginx, "STEPS", ((4, 20.0), (400, 30.0)))
    script = nginx.CaseTwo(Shape(1, 1), jobs=1, pace=1.0, scale=1.0)
    monkeypatch.setattr(nginx, "PODS", 2)
    script.pods = 2
    flags = argparse.Namespace(out=tmp_path, simulated=True, policies="ours", nodes="2x16", resume=False)
    live.run("nginx", lambda policy: script, flags, nginx.ROWS, nginx.panels)
    said = capsys.readouterr().out
    assert "slowest not within 30 s, slowest_up not within 30 s" in said
    assert "step_1_from_4_to_400 not within 30 s" in said
    kept = json.loads((tmp_path / "nginx-simulated-ours.json").read_text())
    assert kept["slowest"] is None and kept["step_0_from_2_to_4"] < 20
    assert "the slowest step, s | not within 120 | ≤ 30 | not within 30 s | ≤ 5 |" in said


def test_an_interrupted_experiment_keeps_what_was_done_and_goes_on_with_the_rest(
    tmp_path, capsys, monkeypatch
):
    from experiments.__main__ import main

    argv = ["jobs", "--simulated", "--jobs=2", "--pace=0.1", "--nodes=2x16,1x32", "--out", str(tmp_path)]
    rehearse = live.rehearse

    def interrupted(nodes, name, policy, *more):
        assert nodes == (Nodes(2, 16), Nodes(1, 32))
        if policy == live.RIGID:
            raise KeyboardInterrupt
        return rehearse(nodes, name, policy, *more)

    monkeypatch.setattr(live, "rehearse", interrupted)
    assert main(argv) == 130
    assert "--resume does the rest" in capsys.readouterr().err
    assert "published, off | ours | to reach" in (tmp_path / "jobs-simulated.md").read_text()
    monkeypatch.undo()
    assert main([*argv, "--resume"]) == 0
    said = capsys.readouterr().out
    assert "jobs, ours: done before" in said and "jobs, rigid: 3 nodes, 64 CPUs" in said
    assert "published, off | ours | rigid | greedy | to reach" in (tmp_path / "jobs-simulated.md").read_text()


@pytest.mark.parametrize("wrong", ["", "3", "3x", "0x16", "3x16,", "axb"])
def test_machines_that_cannot_be_read_are_named(wrong, tmp_path, capsys):
    from experiments.__main__ import main

    assert main(["jobs", "--simulated", f"--nodes={wrong}", "--out", str(tmp_path)]) != 0
    assert "such as 120x16,13x32" in capsys.readouterr().err


def test_the_controller_of_an_experiment_ends_when_the_experiment_is_killed(tmp_path):
    """What it is started through is a shell that waits for the end of its input."""
    said = tmp_path / "said"
    stub = f"trap 'echo told >> {said}; exit' TERM; echo up > {said}; while :; do sleep 0.05; done"
    with (tmp_path / "log").open("w") as log:
        process = that_ends_with_us(["sh", "-c", stub], log)
    eventually(lambda: said.exists() and "up" in said.read_text(), "it runs", 30)
    assert os.getpgid(process.pid) != os.getpgid(0), "Ctrl-C reaches us alone, and the shell lives to see it"
    assert process.stdin is not None
    process.stdin.close()  # as the kernel does with a process that ends
    process.wait(30)
    assert said.read_text().split() == ["up", "told"]


@pytest.mark.parametrize("before", [None, "/of/the/user"])
def test_a_run_leaves_the_users_cluster_as_it_was(before, tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", "set, so that it is put back after the test")
    monkeypatch.delenv("KUBECONFIG") if before is None else monkeypatch.setenv("KUBECONFIG", before)
    seen = []

    class Nothing(live.Script):
        names, pace = [], 1.0
        looked = argparse.Namespace(samples=[])

        def figures(self) -> live.Figures:
            return {}

    async def perform(*_: object) -> None:
        seen.append(os.environ["KUBECONFIG"])

    monkeypatch.setattr(live, "controller", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(live, "_perform", perform)
    cluster = argparse.Namespace(kubeconfig=tmp_path / "config")
    live.perform(cluster, (Nodes(1, 1),), "nothing", live.OURS, Nothing(), tmp_path)
    assert seen == [str(tmp_path / "config")]
    assert os.environ.get("KUBECONFIG") == before
