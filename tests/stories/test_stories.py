"""An exception that went through a hundred frames is told in a few lines, the user's own words last."""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from edl_allreduce.core import stories
from edl_allreduce.errors import DataError, ModelError, UsageError

FRAMEWORK = """
def deep(function, depth):
    return function() if depth == 0 else deep(function, depth - 1)
"""


@pytest.fixture
def framework(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """An installed package that calls back."""
    packages = tmp_path / "site-packages"
    file = packages / "keraslike" / "deep.py"
    file.parent.mkdir(parents=True)
    file.write_text(FRAMEWORK)
    monkeypatch.setattr(stories, "_PACKAGES", {str(packages)})
    spec = importlib.util.spec_from_file_location("keraslike", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def caught(function: Callable[[], object]) -> BaseException:
    with pytest.raises((Exception, SystemExit)) as raised:
        function()
    return raised.value


def my_loss() -> None:
    raise ValueError("my own bug")


def test_frames_of_packages_are_folded_and_the_exception_comes_last_and_once(framework):
    error = caught(lambda: framework.deep(my_loss, 22))
    story = stories.tell(error)
    lines = story.text.splitlines()
    assert "  … 23 frames of keraslike …" in lines
    assert lines[-1] == "ValueError: my own bug" == story.summary
    assert lines[-2].strip() == 'raise ValueError("my own bug")'
    assert lines[-3].startswith(f'  File "{__file__}", line ') and lines[-3].endswith("in my_loss")
    assert story.text.count("ValueError: my own bug") == 1


def test_what_our_error_says_comes_first_and_its_cause_last():
    def build() -> None:
        try:
            my_loss()
        except ValueError as error:
            raise ModelError("net.py: custom_model() raised ValueError: my own bug") from error

    story = stories.tell(_without_frames(caught(build)))
    assert story.text.splitlines()[0] == story.summary
    assert story.summary == "ModelError: net.py: custom_model() raised ValueError: my own bug"
    assert story.text.splitlines()[-1] == "ValueError: my own bug"


def test_an_error_of_ours_without_user_code_is_one_line():
    error = DataError("dd: no such file or directory")
    error.__cause__ = FileNotFoundError("[Errno 2] No such file or directory: 'dd'")
    story = stories.tell(error)
    assert story.text == "DataError: dd: no such file or directory"
    assert not story.own


def test_a_quoted_traceback_is_not_told_twice():
    cause = _without_frames(caught(lambda: int("x")))
    error = ModelError("net.py: the step could not be traced.\nTraceback (most recent call last):\n  File …")
    error.__cause__ = cause
    story = stories.tell(error)
    assert story.text.splitlines() == [
        "ModelError: net.py: the step could not be traced.",
        "ValueError: invalid literal for int() with base 10: 'x'",
    ]


def test_a_misuse_is_told_with_the_line_that_misused():
    def loop() -> None:
        raise UsageError("step.average must be called exactly once")

    story = stories.tell(caught(loop))
    assert story.own and "in loop" in story.text
    assert story.text.splitlines()[-1] == "UsageError: step.average must be called exactly once"


def test_the_users_words_are_dug_out_of_what_tensorflow_makes_of_them():
    text = (
        "Graph execution error:\n\n"
        "Detected at node EagerPyFunc defined at (most recent call last):\n"
        '  File "/home/me/net.py", line 13, in loss\n\n'
        "ValueError: my own bug in step\n"
        "Traceback (most recent call last):\n\n"
        '  File "/home/me/net.py", line 10, in _count\n'
        '    raise ValueError("my own bug in step")\n\n'
        "ValueError: my own bug in step\n\n\n"
        "\t [[{{node EagerPyFunc}}]] [Op:__inference__local_graph_205]"
    )
    story = stories.tell(_without_frames(RuntimeError(text)))
    assert story.text.splitlines()[-1] == "ValueError: my own bug in step" == story.summary
    assert '  File "/home/me/net.py", line 10, in _count' in story.text.splitlines()
    assert "node" not in story.text


def test_a_text_after_frames_is_the_text():
    text = (
        "Graph execution error:\n\nDetected at node x defined at (most recent call last):\n"
        '  File "/home/me/net.py", line 7, in loss\n\n'
        "Received a label value of 9 which is outside the valid range of [0, 9).\n"
        "\t [[{{node x}}]] [Op:__inference_1]"
    )
    story = stories.tell(RuntimeError(text))
    assert (
        story.summary
        == "RuntimeError: Received a label value of 9 which is outside the valid range of [0, 9)."
    )


def test_what_autograph_adds_is_left_out():
    text = (
        "in user code:\n\n"
        '    File "/home/me/net.py", line 11, in feed  *\n'
        '        raise KeyError("column")\n\n'
        "    KeyError: 'column'\n"
    )
    story = stories.tell(RuntimeError(text))
    assert story.summary == "KeyError: 'column'"


def test_the_same_failure_has_the_same_place_and_another_line_another_one():
    def other() -> None:
        raise ValueError("my own bug")

    first, again, elsewhere = (stories.tell(caught(f)).place for f in (my_loss, my_loss, other))
    assert first == again != elsewhere


def test_a_recursion_is_cut():
    def endless(n: int = 0) -> int:
        return endless(n + 1)

    story = stories.tell(caught(endless))
    assert len(story.text.splitlines()) < 40
    assert "RecursionError" in story.text.splitlines()[-1]


def test_sys_exit_is_named():
    assert stories.tell(caught(lambda: sys.exit(3))).summary == "SystemExit: sys.exit(3) was called"


def test_an_exception_that_cannot_describe_itself_is_told_all_the_same():
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert stories.tell(Mute()).summary == "Mute: (it cannot describe itself)"


def _without_frames(error: BaseException) -> BaseException:
    """As if it came out of our own code."""
    return error.with_traceback(None)
