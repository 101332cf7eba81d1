"""How this package talks about words that it does not know."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable, Sequence
from typing import NoReturn

from edl_allreduce.errors import UsageError


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was most likely meant."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return found[0] if found else None


def did_you_mean(name: str, known: Iterable[str], *, prefix: str = "") -> str:
    """' Did you mean X?', or nothing when no known name is near."""
    found = nearest(name, known)
    return f" Did you mean {prefix}{found}?" if found else ""


class Parser(argparse.ArgumentParser):
    """argparse that guesses no abbreviation, keeps the line breaks of examples and raises our error."""

    def __init__(self, prog: str, usage: str, description: str, epilog: str = "") -> None:
        super().__init__(
            prog=prog,
            usage=f"{prog} {usage}",
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """Like parse_args, but an unknown flag names the nearest known one."""
        namespace, rest = self.parse_known_args(list(argv))
        if rest:
            word = rest[0].split("=", 1)[0]
            known = [option for action in self._actions for option in action.option_strings]
            what = "flag" if word.startswith("-") else "argument"
            self.error(f"unknown {what} {word}.{did_you_mean(word, known)}".removesuffix("."))
        return namespace

    def error(self, message: str) -> NoReturn:
        end = "" if message.endswith("?") else "."
        raise UsageError(f"{message[0].upper()}{message[1:]}{end}\nSee `{self.prog} --help`.")
