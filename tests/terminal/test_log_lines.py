"""Lines of logs: as JSON for those who collect them, and without what TensorFlow says at each import."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys

import pytest

from edl_allreduce import logs
from edl_allreduce.worker.start.tensorflow_import import CHATTER


def test_a_line_is_a_json_object_whatever_was_said():
    try:
        raise ValueError("with\nlines")
    except ValueError:
        record = logging.LogRecord(
            "somebody", logging.ERROR, __file__, 1, 'said "%s"\x1b[31m', ("this",), sys.exc_info()
        )
    line = logs.JsonFormatter("worker 3").format(record)
    said = json.loads(line)
    assert "\n" not in line and "\x1b" not in line
    assert (said["level"], said["process"], said["logger"]) == ("ERROR", "worker 3", "somebody")
    assert said["message"].startswith('said "this"') and "ValueError: with" in said["exception"]
    assert said["time"].endswith("+00:00")


NATIVE = """
import os
from edl_allreduce.worker.start.tensorflow_import import CHATTER, without_chatter
with without_chatter():
    for words in CHATTER:
        os.write(2, f"I0000 {words} and more\\n".encode())
    os.write(2, b"something that matters\\n")
    %s
os.write(2, b"after it\\n")
"""


@pytest.mark.parametrize(("then", "said"), [("pass", ["something that matters", "after it"]),
                                             ("os.abort()", ["something that matters"])])  # fmt: skip
def test_what_tensorflow_always_says_is_left_out_and_last_words_are_not(then, said):
    done = subprocess.run(
        [sys.executable, "-c", NATIVE % then], stderr=subprocess.PIPE, text=True, check=False, env=os.environ
    )
    assert [line for line in done.stderr.splitlines() if line] == said
    assert CHATTER
