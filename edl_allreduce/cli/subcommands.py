"""Commands that have commands of their own: `elasticdl data make`, `elasticdl zoo build`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from edl_allreduce.errors import UsageError
from edl_allreduce.spec.words import did_you_mean

SubCommand = tuple[str, Callable[[Sequence[str]], int]]
"""What it does in one line, and what does it."""


def run(program: str, about: str, commands: Mapping[str, SubCommand], argv: Sequence[str]) -> int:
    """Find the sub-command and run it, or show which there are."""
    if not argv or argv[0] in ("-h", "--help"):
        width = max(map(len, commands))
        lines = [f"  {name:{width}}  {summary}" for name, (summary, _) in commands.items()]
        print("\n".join([f"usage: {program} COMMAND [flags]", "", about, "", *lines]))
        return 0 if argv else 1
    name, *rest = argv
    if name not in commands:
        hint = did_you_mean(name, commands)
        raise UsageError(f"Unknown sub-command {name}.{hint} It must be one of {', '.join(commands)}.")
    return commands[name][1](rest)
