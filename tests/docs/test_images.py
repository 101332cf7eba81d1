"""What the page on images says of the Dockerfiles: who runs in them, on what base, with which arguments."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys

import pytest

from tests.docs.blocks import ROOT

KINDS = runpy.run_path(str(ROOT / "docker" / "build"), run_name="docker_build")["KINDS"]
PAGE = (ROOT / "docs" / "guides" / "images.md").read_text()


def test_each_dockerfile_is_a_kind_and_the_page_has_all_of_them():
    assert {kind.file for kind in KINDS.values()} == {
        path.name for path in (ROOT / "docker").glob("Dockerfile*")
    }
    for name, kind in KINDS.items():
        assert f"| `{name}` | `docker/{kind.file}` | `{kind.tag}` |" in PAGE


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_is_root_in_the_end_and_the_base_can_be_chosen(kind):
    text = (ROOT / "docker" / KINDS[kind].file).read_text()
    stages = re.split(r"^FROM ", text, flags=re.MULTILINE)
    assert re.search(r"^ARG BASE_IMAGE=\S+$", stages[0], re.MULTILINE)
    assert stages[1].startswith("${BASE_IMAGE}")
    users = re.findall(r"^USER (\S+)$", stages[-1], re.MULTILINE)
    stands_on_ours = KINDS[kind].on != ""
    assert users == ([] if stands_on_ours else ["65532:65532"])
    for argument in re.findall(r"^ARG (\w+)=", text, re.MULTILINE):
        assert f"`{argument}`" in PAGE


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cuda"], "there is no image cuda; there are cpu, controller"),
        (["cpu", "data", "--tag=a:1"], "--tag is for one image"),
        (["data", "--build_arg=GEN_DATA"], "--build_arg wants NAME=VALUE"),
    ],
)
def test_a_wrong_word_is_told_before_anything_is_built(words, said):
    done = subprocess.run(
        [sys.executable, str(ROOT / "docker" / "build"), *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and said in done.stderr
