"""Each benchmark once, as small as can be: that it measures and reports, not how fast anything is."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.frame import BenchmarkFailed
from benchmarks.links import Links

ROOT = Path(__file__).resolve().parents[2]

SMALL = {
    "steady": ["--rounds=1", "--models=mlp", "--steps=40", "--static_only"],
    "reform": [
        "--rounds=1",
        "--kills=1",
        "--drains=0",
        "--kills_of_four=0",
        "--kills_with_standby=1",
        "--no_peer",
    ],
    "worlds": ["--rounds=1", "--sizes=2"],
    "allreduce": ["--rounds=1", "--sizes=4,65536"],
    "data": ["--rounds=1", "--records=300", "--pixels=4"],
    "checkpoint": ["--rounds=1", "--model=mlp", "--steps=12", "--every=4"],
    "startup": ["--rounds=1"],
    "seeing": ["--rounds=1", "--seconds=1"],
    "scale": ["--rounds=1", "--records=2000", "--shards=20"],
    "autoscale": ["--rounds=1", "--sizes=40x4x20"],
    "churn": ["--seconds=4", "--every=4", "--undisturbed=3", "--workers=2", "--standby=0", "--no_peer"],
    "master": ["--workers=30", "--seconds=2", "--churn_seconds=0"],
    "reproducible": ["--rounds=1", "--models=mlp", "--steps=20", "--virtual=4"],
    "network": ["--rounds=1", "--models=mlp", "--gigabits=1", "--seconds=0.1"],
}


def has_to_be_left_out(name: str) -> str:
    """Why, if so."""
    if name != "network":
        return ""
    try:
        with Links(1) as links:
            links.limit(1)
    except BenchmarkFailed as error:
        return str(error)
    return ""


@pytest.mark.training
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SMALL)
def test_benchmark(name, tmp_path):
    if why := has_to_be_left_out(name):
        pytest.skip(why)
    path = tmp_path / "figures.json"
    command = [sys.executable, "-m", f"benchmarks.{name}", *SMALL[name], "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(path.read_text())
    assert found["name"] == name
    assert found["rows"] and found["verdict"] and found["machine"]["cores"]
    last = " ".join(done.stdout.split())
    assert last.endswith(" ".join(found["verdict"].split())), "the last line is the ratio"
    measured = [value for values in found["figures"].values() for value in values]
    # On a busy machine what something costs more than nothing may come out below nothing.
    assert measured and all(math.isfinite(value) for value in measured)


def test_links_say_what_they_need(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(BenchmarkFailed, match="only root may make: run it as root"):
        Links(2)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BenchmarkFailed, match="ip and tc is not here: install iproute2"):
        Links(2)


def test_unknown_benchmarks_are_named():
    command = [sys.executable, "-m", "benchmarks", "--only=speed"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert "no benchmark named speed" in done.stderr and "steady" in done.stderr
