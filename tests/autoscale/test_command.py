"""`elasticdl autoscale --replay`: table, JSON, figure, and what it says to wrong words."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from edl_allreduce.cli import main as cli
from edl_allreduce.cli.figure import Panel, svg

SMALL = ["autoscale", "--replay", "generated", "--jobs=12", "--hours=1", "--slots=8"]


def test_policies_stand_side_by_side(capsys):
    assert cli.main(SMALL) == 0
    out = capsys.readouterr().out
    assert "generated: 12 jobs, 8 slots, pause 1 s, start-up 30 s, speeds learned" in out
    assert [line.split()[0] for line in out.splitlines()[2:6]] == ["speed", "equal", "greedy", "rigid"]


def test_json_has_the_setting_and_every_figure(capsys):
    assert cli.main([*SMALL, "--policies=speed,greedy", "--output=json", "--known_speed"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["workloads"] == {"generated": 12}
    assert found["setting"]["slots"] == 8 and found["setting"]["known_speed"]
    assert [one["policy"] for one in found["policies"]] == ["speed", "greedy"]
    assert all(one["jobs"] == 12 and one["mean_completion"] > 0 for one in found["policies"])


def test_the_figure_is_drawn(tmp_path, capsys):
    path = tmp_path / "replay.svg"
    assert cli.main([*SMALL, f"--figure={path}"]) == 0
    root = ElementTree.fromstring(path.read_text())
    words = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"speed", "rigid", "slots in use", "jobs that wait"} <= words
    assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) == 4 * 4
    assert str(path) in capsys.readouterr().out


def test_files_are_replayed_together(tmp_path, capsys):
    for number in (1, 2):
        rows = "\n".join(f"job-{n},{n},2,300" for n in range(3))
        (tmp_path / f"w{number}.csv").write_text(f"name,time,workers,seconds\n{rows}\n")
    files = [str(tmp_path / f"w{number}.csv") for number in (1, 2)]
    assert cli.main(["autoscale", "--replay", *files, "--slots=4"]) == 0
    assert "w1.csv, w2.csv: 6 jobs, 4 slots" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["autoscale"], 2, "Name what to replay"),
        (["autoscale", "--replay"], 2, "expected at least one argument"),
        (["autoscale", "--replay", "nowhere.csv"], 2, "nowhere.csv: there is no such file"),
        ([*SMALL, "--policies=sped"], 2, "unknown policy 'sped'. Did you mean speed?"),
        ([*SMALL, "--policies=,"], 2, "--policies is empty"),
        ([*SMALL, "--slots=0"], 2, "--slots=0: expected a whole number from 1"),
        ([*SMALL, "--slots=many"], 2, "--slots=many: expected a whole number"),
        ([*SMALL, "--pause=-1"], 2, "--pause=-1: expected a number not below 0"),
        ([*SMALL, "--interval=nan"], 2, "--interval=nan: expected a number not below 1"),
        ([*SMALL, "--max_load=2"], 2, "--max_load=2: expected a number above 0 and at most 1"),
        ([*SMALL, "--figure=/nowhere/at/all.svg"], 2, "there is no directory /nowhere/at"),
        ([*SMALL, "--polices=speed"], 2, "Did you mean --policies?"),
    ],
)
def test_wrong_words_are_told(words, code, says, capsys):
    assert cli.main(words) == code
    assert says in capsys.readouterr().err


def test_a_wrong_file_names_its_line(tmp_path, capsys):
    path = tmp_path / "jobs.csv"
    path.write_text("name,time,workers,seconds\na,0,x,5\n")
    assert cli.main(["autoscale", "--replay", str(path)]) == 1
    assert f"{path}: line 2: workers='x'; expected a number." in capsys.readouterr().err
    path.write_bytes(b"\xff\xfe\x00")
    assert cli.main(["autoscale", "--replay", str(path)]) == 1
    assert "is not text in UTF-8" in capsys.readouterr().err


def test_help_teaches(capsys):
    assert cli.main(["autoscale", "--help"]) == 0
    out = capsys.readouterr().out
    for words in ("--replay generated", "name,time,workers,seconds", "PaddlePaddle", "--start_up"):
        assert words in out


def test_a_figure_of_nothing_and_of_one_point():
    root = ElementTree.fromstring(
        svg("<&>", [Panel("none", "x", {}), Panel("one", "x", {"a": [(0.0, 0.0)]})])
    )
    assert root.tag.endswith("svg")


def test_a_long_series_is_thinned_and_keeps_its_end():
    text = svg("t", [Panel("p", "x", {"a": [(float(n), 1.0) for n in range(10_000)]})])
    assert len(text) < 20_000
