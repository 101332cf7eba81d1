"""The commands of the README exist and do what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def make(*arguments: str, **environ: str) -> str:
    env = {**os.environ, **environ}
    for outer in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL"):  # this may run inside `make test`
        env.pop(outer, None)
    return subprocess.run(
        ["make", *arguments], cwd=ROOT, env=env, capture_output=True, text=True, check=True
    ).stdout  # fmt: skip


def test_make_alone_lists_the_targets():
    listed = make()
    for target in ("demo", "test", "test-fast", "lint", "cluster", "bench", "clean"):
        assert f"\n{target} " in f"\n{listed}"


def test_every_command_sets_up_first():
    for target in ("demo", "test", "test-fast", "lint", "cluster", "bench"):
        assert make("-n", target).splitlines()[0] == "scripts/setup"


def test_ci_runs_what_a_developer_runs():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "make test" in script.read_text()


def test_the_version_is_told_by_the_package_alone():
    ask = "import edl_allreduce, sys; print(edl_allreduce.__version__, 'tensorflow' in sys.modules)"
    asked = subprocess.run([sys.executable, "-c", ask], cwd=ROOT, capture_output=True, text=True, check=True)
    assert asked.stdout.split()[1] == "False"
