"""Find the command, run it, turn its end into an exit code.

Commands are named here and imported only when they run, so that `elasticdl --help` costs nothing.
"""

from __future__ import annotations

import dataclasses
import importlib
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from edl_allreduce import outside
from edl_allreduce.contract import EXIT_INTERRUPTED
from edl_allreduce.errors import EdlError, SetupError, UsageError
from edl_allreduce.spec.words import did_you_mean


@dataclasses.dataclass(frozen=True)
class Entry:
    """A command: what it does in one line, and the function `main(argv) -> exit code` that does it."""

    summary: str
    target: str


# In the order in which help shows them.
COMMANDS: Final[Mapping[str, Entry]] = {
    "train": Entry("train a model, on this machine or on Kubernetes", "edl_allreduce.cli.train:train"),
    "evaluate": Entry("evaluate a trained model", "edl_allreduce.cli.train:evaluate"),
    "predict": Entry("predict with a trained model", "edl_allreduce.cli.train:predict"),
    "jobs": Entry("list local jobs, and remove old ones", "edl_allreduce.cli.jobs:main"),
    "status": Entry("show jobs, or one job with its workers", "edl_allreduce.cli.status:main"),
    "attach": Entry("sit down before a job in the background again", "edl_allreduce.cli.attach:main"),
    "top": Entry("live view of a running job", "edl_allreduce.cli.top:main"),
    "dashboard": Entry("open the page of a running job", "edl_allreduce.cli.dashboard:main"),
    "logs": Entry("show what workers and master printed", "edl_allreduce.cli.logs:main"),
    "events": Entry("show what happened to a job, with reasons", "edl_allreduce.cli.events:main"),
    "story": Entry("tell the life of one worker, from its start to its end", "edl_allreduce.cli.story:main"),
    "report": Entry("write what came of a job: HTML, Markdown, JSON", "edl_allreduce.cli.report:main"),
    "scale": Entry("change the number of workers while training", "edl_allreduce.cli.scale:main"),
    "drain": Entry("let one worker go, and another take its place", "edl_allreduce.cli.drain:main"),
    "autoscale": Entry(
        "replay a workload: what each policy would have done", "edl_allreduce.cli.autoscale:main"
    ),
    "stop": Entry("stop a job at a step boundary", "edl_allreduce.cli.stop:main"),
    "hosts": Entry("print the ring's members for horovodrun", "edl_allreduce.cli.hosts:main"),
    "audit": Entry("prove that each record was used exactly once", "edl_allreduce.cli.audit:main"),
    "data": Entry("make, inspect, check and split training data", "edl_allreduce.cli.data:main"),
    "zoo": Entry("make, build and push the image of a model zoo", "edl_allreduce.cli.zoo:main"),
    "doctor": Entry("check this machine and say what is missing", "edl_allreduce.cli.doctor:main"),
    "version": Entry("print the version", "edl_allreduce.cli.version:main"),
}

_EXAMPLES: Final = """\
Examples:
  elasticdl doctor
  elasticdl train --job_name=digits --model_zoo=model_zoo --model_def=digits.mlp.custom_model \\
      --training_data=data/train --num_workers=4

Exit codes: 0 success, 1 failure, 2 wrong usage, 130 interrupted."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `elasticdl` with these arguments. Errors that we know end in one message, never in a traceback."""
    if argv is None:
        _speak_utf8()
        _open_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        _check_words(words)
        code = _dispatch(words)
        sys.stdout.flush()
        return code
    except EdlError as error:
        print(f"elasticdl: {outside.story(error)}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _silence()  # the reader (head, less) has gone
        return 1
    except OSError as error:
        # A disk that is full, a directory that may not be read: the system says what and where.
        where = f"{error.filename}: " if error.filename else ""
        print(f"elasticdl: {outside.line(where)}{outside.line(error.strerror or error)}", file=sys.stderr)
        _silence()
        return 1


def _silence() -> None:
    """Python would complain when it flushes standard output at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _speak_utf8() -> None:
    """Begin again where the locale is not UTF-8 (LC_ALL=POSIX): names of files would become unreadable."""
    if sys.flags.utf8_mode or sys.getfilesystemencoding().lower() in ("utf-8", "utf8"):
        return
    again = [sys.executable, "-X", "utf8", *sys.orig_argv[1:]]
    os.execve(sys.executable, [os.fsencode(word) for word in again], {**os.environ, "PYTHONUTF8": "1"})


def _open_streams() -> None:
    """A command whose standard streams were closed (`>&-`) would use their numbers for its own files."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            nothing = Path(os.devnull).open("r" if name == "stdin" else "w")  # noqa: SIM115  for as long as we run
            setattr(sys, name, nothing)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _check_words(words: Sequence[str]) -> None:
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"{outside.line(word)!r} is not UTF-8, so it cannot be sent to workers or written to a log. "
                "Rename the file, or give its name in UTF-8."
            ) from None


def load(target: str) -> Callable[..., int]:
    """Import 'module:function'."""
    module, _, name = target.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing == "edl_allreduce":
            raise SetupError(f"This installation lacks {error.name}; install edl-allreduce again.") from error
        raise SetupError(
            f"The Python package {missing!r} is missing. `elasticdl doctor` says how to install it."
        ) from error
    assert callable(function)
    return function  # type: ignore[no-any-return]  # what a module exports is known only when it is imported


def overview() -> str:
    """What `elasticdl --help` prints."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {entry.summary}" for name, entry in COMMANDS.items()]
    return "\n".join(
        [
            "usage: elasticdl COMMAND [flags]",
            "",
            "Elastic training for TensorFlow: workers come and go, no step is lost.",
            "",
            "Commands (each teaches with --help):",
            *lines,
            "",
            _EXAMPLES,
        ]
    )


def _dispatch(words: list[str]) -> int:
    if not words:
        print(overview())
        return 1
    name, *rest = words
    if name in ("-h", "--help", "help"):
        if name == "help" and rest:
            return _dispatch([rest[0], "--help"])
        print(overview())
        return 0
    if name == "--version":
        name = "version"
    if name not in COMMANDS:
        what = "flag" if name.startswith("-") else "command"
        raise UsageError(
            f"Unknown {what} {name!r}.{did_you_mean(name, COMMANDS)}\n"
            f"Commands: {', '.join(COMMANDS)}. See `elasticdl --help`."
        )
    try:
        return load(COMMANDS[name].target)(rest)
    except SystemExit as stop:
        # argparse leaves this way after it has printed help.
        return stop.code if isinstance(stop.code, int) else 0
