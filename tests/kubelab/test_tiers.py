"""A run of tests says what it left out and why, and CI does not let anything be left out."""

import os
import subprocess
import sys
from pathlib import Path

from kubelab import places
from kubelab.tiers import Tier, Verdict

TESTS = """
import pytest

@pytest.mark.cluster
def test_on_nodes(): pass

@pytest.mark.controlplane
def test_on_a_control_plane(): pass

def test_elsewhere(): pass
"""

NO_ROOT = """
from kubelab import tiers
tiers.detect = lambda: tiers.Verdict(tiers.Tier.CONTROL_PLANE, "real nodes need root")
"""


def _pytest(directory: Path, **environment: str) -> str:
    (directory / "test_it.py").write_text(TESTS)
    (directory / "pytest.ini").write_text("[pytest]\n")
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "kubelab.pytest_plugin",
        "-p",
        "no:cacheprovider",
        "--color=no",
    ]
    clean = {name: value for name, value in os.environ.items() if name not in ("CI", "K8S_TESTS")}
    path = {"PYTHONPATH": str(places.PACKAGE.parent)}
    done = subprocess.run(
        argv, cwd=directory, env={**clean, **path, **environment}, capture_output=True, text=True, check=False
    )
    return done.stdout


def test_the_last_lines_name_what_was_left_out_and_why(tmp_path):
    (tmp_path / "conftest.py").write_text(NO_ROOT)
    said = _pytest(tmp_path)
    assert "2 passed, 1 skipped" in said
    assert "kubelab: left out 1 tests (cluster: real nodes need root)" in said


def test_clusters_can_be_left_out_by_wish(tmp_path):
    said = _pytest(tmp_path, K8S_TESTS="False")
    assert "1 passed, 2 skipped" in said
    assert "(cluster: K8S_TESTS=False)" in said and "(controlplane: K8S_TESTS=False)" in said


def test_in_ci_a_missing_tier_is_a_failure(tmp_path):
    (tmp_path / "conftest.py").write_text(NO_ROOT)
    said = _pytest(tmp_path, CI="true")
    assert "2 passed, 1 error" in said
    assert "CI must not leave this out" in said


def test_a_verdict_is_a_sentence():
    assert Verdict(Tier.NODES).sentence() == "this machine allows real nodes"
    assert "no Go compiler" in Verdict(Tier.NONE, "there is no Go compiler").sentence()
