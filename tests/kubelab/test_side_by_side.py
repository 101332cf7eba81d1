"""Runs in several processes: tests of a cluster stay together."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OF_A_CLUSTER = """
import pytest
@pytest.mark.controlplane
@pytest.mark.parametrize("number", range(4))
def test_of_a_cluster(number): ...
"""
OTHERS = """
import pytest
@pytest.mark.parametrize("number", range(8))
def test_of_nothing(number): ...
"""


@pytest.mark.programs
def test_all_files_of_a_cluster_go_to_one_process_and_the_others_anywhere(tmp_path):
    for name, text in {"one": OF_A_CLUSTER, "two": OF_A_CLUSTER, "three": OTHERS}.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["kubelab.pytest_plugin"]\n')
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-v",
        "-n",
        "2",
        "--dist",
        "loadgroup",
        "--rootdir",
        str(tmp_path),
    ]
    environment = {**os.environ, "K8S_TESTS": "False", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    lines = re.finditer(r"\[(gw\d)\] \[ *\d+%\] (?:PASSED|SKIPPED) (\S+)", done.stdout)
    where = {line[2]: line[1] for line in lines}
    clusters = {process for name, process in where.items() if "of_a_cluster" in name}
    assert len(where) == 16 and len(clusters) == 1, done.stdout + done.stderr
    assert {process for name, process in where.items() if "of_nothing" in name} - clusters, done.stdout
