"""A run of tests says what it left out and why, and CI does not let anything be left out."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kubelab import places
from kubelab.tiers import Tier, Verdict

pytestmark = pytest.mark.programs

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


def _pytest(directory: Path, settings: str = "", **environment: str) -> str:
    (directory / "test_it.py").write_text(TESTS)
    (directory / "pytest.ini").write_text(f"[pytest]\n{settings}\n")
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


def test_a_preparation_that_fails_fails_those_who_need_it_with_its_own_words(tmp_path):
    fixture = "import pytest\n@pytest.fixture\ndef image(): pass\n"
    (tmp_path / "conftest.py").write_text(f"{NO_ROOT}\n{fixture}")
    command = "sh -c 'echo the wheel of Horovod is missing; exit 3'"
    said = _pytest(tmp_path, f"kubelab_prepare = image: {command}")
    assert "2 passed, 1 skipped" in said, "nobody needs it: it does not run"
    (tmp_path / "test_with_image.py").write_text(
        "import pytest\n@pytest.mark.controlplane\ndef test_image(image): pass\n"
    )
    said = _pytest(tmp_path, f"kubelab_prepare = image: {command}")
    assert "2 passed, 1 skipped, 1 error" in said
    assert "returned 3:\nthe wheel of Horovod is missing" in said


def test_in_ci_a_missing_tier_is_a_failure(tmp_path):
    (tmp_path / "conftest.py").write_text(NO_ROOT)
    said = _pytest(tmp_path, CI="true")
    assert "2 passed, 1 error" in said
    assert "CI must not leave this out" in said


def test_without_a_compiler_and_without_programs_there_is_no_kubernetes(tmp_path):
    (tmp_path / "openssl").symlink_to("/bin/true")
    ask = "from kubelab import commands, tiers; commands._MORE_PLACES = ''; print(tiers.detect().sentence())"
    said = subprocess.run(
        [sys.executable, "-c", ask],
        env={"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)},
        cwd=places.PACKAGE.parent,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said.startswith("this machine allows no Kubernetes: Kubernetes' programs must be built once")
    assert "no Go compiler" in said


def test_a_verdict_is_a_sentence():
    assert Verdict(Tier.NODES).sentence() == "this machine allows real nodes"
    expected = "this machine allows a control plane with hollow nodes only: real nodes need root"
    assert Verdict(Tier.CONTROL_PLANE, "real nodes need root").sentence() == expected
