"""Whatever happened to a file or a text: it is read, or our own error says what is wrong; nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from tests.bad_input.campaign import STYLE, Bench
from tests.bad_input.formats import FORMATS, Format
from tests.bad_input.texts import TEXTS, Text

ROOT = Path(__file__).resolve().parents[2]
TEXT_EXAMPLES = 150
NATIVE_EXAMPLES = 120

pytestmark = pytest.mark.search


@pytest.mark.parametrize("form", [f for f in FORMATS if not f.native], ids=lambda form: form.name)
def test_a_damaged_file_is_read_or_told(form: Format, tmp_path):
    bench = Bench(form, tmp_path)

    @settings(max_examples=form.examples, derandomize=True, **STYLE)
    @given(bench.cases())
    def check(case: tuple[Path, bytes]) -> None:
        bench.try_it(*case)

    check()


@pytest.mark.parametrize("name", [f.name for f in FORMATS if f.native])
def test_a_damaged_file_of_a_native_library_is_read_or_told(name):
    """In a process of its own, which such a library could end."""
    command = [sys.executable, "-m", "tests.bad_input.campaign", name, f"--examples={NATIVE_EXAMPLES}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.name)
def test_a_damaged_text_is_read_or_told(text: Text):
    @settings(max_examples=TEXT_EXAMPLES, derandomize=True, **STYLE)
    @given(text.cases)
    def check(case: Any) -> None:
        text.try_it(case)

    check()
