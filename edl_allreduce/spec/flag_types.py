"""The flags of `elasticdl train` as types, for editors: `submit_flags.py` is written by this.

python -m edl_allreduce.spec.flag_types > edl_allreduce/spec/submit_flags.py
"""

from __future__ import annotations

import textwrap

from edl_allreduce.spec.declare import Command, flag_of, flags_of
from edl_allreduce.spec.job import JobSpec

HEAD = '''"""Arguments of `api.submit`: the flags of `elasticdl train`. Written by `spec.flag_types`."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import Any, TypedDict


class TrainFlags(TypedDict, total=False):
    """All of them may be left out; those that must be there are checked when the job is submitted."""
'''
SHIPPED = ("model_def", "loss", "optimizer", "feed", "eval_metrics_fn", "callbacks", "custom_data_reader")
"""Flags that name a function of the model file, where the function itself may be given."""
PLAIN = {"bool": "bool", "int": "int", "float": "float", "int | None": "int"}
"""Of fields; the others are words or paths."""
WIDTH = 106


def text() -> str:
    """The module `submit_flags`."""
    parts = [HEAD]
    for field in flags_of(JobSpec):
        info = flag_of(field)
        if Command.TRAIN in info.commands:
            kind = PLAIN.get(str(field.type), "str | PathLike[str]")
            kind = "str | Callable[..., Any] | object" if field.name == "model_def" else kind
            kind = "str | Callable[..., Any]" if field.name in SHIPPED[1:] else kind
            parts.append(f"\n    {field.name}: {kind}\n" + _doc(info.help))
    return "".join(parts)


def _doc(words: str) -> str:
    lines = textwrap.wrap(f'"""{words}"""', WIDTH - 4, break_long_words=False)
    return "".join(f"    {line}\n" for line in lines)


if __name__ == "__main__":
    print(text(), end="")
