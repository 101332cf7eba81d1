"""The site builds without a warning, with a whole reference; each shell block says whether it was run."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from typing import get_args

import pytest

from edl_allreduce.core import events
from edl_allreduce.spec import JobSpec
from edl_allreduce.version import __version__
from tests.docs.blocks import PAGES, ROOT, blocks

TYPED = {"docs/guides/laptop.md", "docs/guides/own-model.md"}
"""Whose commands test_commands_of_the_guides.py types, one after the other."""
ELSEWHERE = {
    "README.md": "tests/setup/test_make.py",
    "docs/page.md": "tests/page",
    "docs/local-cluster.md": "tests/kubelab",
    "docs/running/README.md": "tests/local_strategy",
    "docs/running/by-hand.md": "tests/by_hand",
    "docs/running/fit.md": "tests/fit",
    "docs/running/commands.md": "tests/commands",
    "docs/running/horovodrun.md": "tests/horovodrun",
    "docs/running/own-loop.md": "tests/own_loop",
    "docs/kubernetes/README.md": "tests/kubernetes",
    "docs/kubernetes/edl.md": "tests/trainingjob/test_walks_of_the_documents.py",
    "docs/kubernetes/kueue.md": "tests/trainingjob/test_with_a_real_kueue.py",
    "docs/kubernetes/local.md": "tests/kubernetes",
    "docs/kubernetes/static.md": "tests/kubernetes",
    "docs/kubernetes/controller.md": "tests/controller",
    "docs/kubernetes/trainingjob.md": "tests/trainingjob",
}
"""Pages whose commands need several terminals, a cluster or minutes: these tests do what the page says."""


def name(page):
    return str(page.relative_to(ROOT))


def build(*words: str) -> subprocess.CompletedProcess[str]:
    """As `make docs` does. (Not with --quiet, which would hide warnings from --strict as well.)"""
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", *words],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.programs
def test_a_link_to_nowhere_is_an_error(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("[there](nowhere.md)")
    settings = {
        "INHERIT": str(ROOT / "mkdocs.yml"),
        "docs_dir": "docs",
        "hooks": [],
        "nav": [{"Page": "page.md"}],
    }
    (tmp_path / "mkdocs.yml").write_text(json.dumps(settings))
    built = build("--config-file", str(tmp_path / "mkdocs.yml"), "--site-dir", str(tmp_path / "site"))
    assert built.returncode == 1
    assert "contains a link 'nowhere.md'" in built.stderr
    assert "Aborted with 1 warnings" in built.stdout + built.stderr


@pytest.mark.programs
def test_the_site_builds_without_a_warning(tmp_path):
    site = tmp_path / "site"
    built = build("--site-dir", str(site))
    assert built.returncode == 0, built.stderr[-4000:]
    flags = (site / "reference" / "flags.html").read_text()
    assert not [field.name for field in dataclasses.fields(JobSpec) if f"--{field.name}<" not in flags]
    told = (site / "reference" / "events.html").read_text()
    assert not [event.__name__ for event in get_args(events.Event) if event.__name__ not in told]
    for page, word in {
        "trainingjob": "spec.workers.min", "metrics": "elasticdl_ring_size", "errors": "BadRecord",
        "commands": "elasticdl scale", "python": "join(",
    }.items():  # fmt: skip
        text = re.sub(r"<[^>]+>", "", (site / "reference" / f"{page}.html").read_text())
        assert word in text
    assert "page.png" in (site / "index.html").read_text(), "the README is the first page"
    asked = re.findall(
        r'(?:src|href)="(https?://[^"]+\.(?:js|css|woff2?))', (site / "index.html").read_text()
    )
    assert not asked, "a page is read without asking anybody else"


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=name)
def test_every_shell_block_is_run_or_says_that_it_was_not(page):
    unmarked = [block.text for block in blocks(page) if not block.marked]
    if unmarked and name(page) not in TYPED:
        assert name(page) in ELSEWHERE, (
            f"type the commands of {name(page)} in a test, name the tests that do, or mark them: "
            '```sh title="not run here: why"'
        )
        assert (ROOT / ELSEWHERE[name(page)]).exists()


def test_the_readme_names_the_versions_that_there_are():
    readme = (ROOT / "README.md").read_text()
    pins = (ROOT / "constraints.txt").read_text()
    pinned = {name.lower(): short for name, short in re.findall(r"^([\w-]+)==(\d+\.\d+)", pins, re.MULTILINE)}
    assert f"Version {__version__} " in readme
    assert f"TensorFlow {pinned['tensorflow_cpu']} · Keras {pinned['keras']} ·" in readme
