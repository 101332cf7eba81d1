"""Text that came from outside: reasons, notes, exceptions, names of hosts, files, jobs and metrics.

It is data, whatever it holds. It reaches a terminal or a log only through these functions: what is not
printable is shown as Python would write it (`\\x1b`), and long texts are cut. Consoles are made here, too, so
that square brackets are brackets and never rich's markup.
"""

from __future__ import annotations

import os
import re
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.console import Console

LINE: Final = 400
"""Characters of a text that has one line of its own: a reason, a note."""
NAME: Final = 120
"""Characters of a name in a table."""
STORY: Final = 20_000
"""Characters of a text of many lines, such as a traceback."""

LOG_WIDTH: Final = 120
"""Columns of a table in a file or a pipe, which have no width of their own."""

_LINE_BREAKS: Final = re.compile(r"\r\n|[\n\r]")


def line(text: object, limit: int = LINE) -> str:
    """On one line: the first that says something, and an ellipsis where more was said."""
    whole = str(text).strip()
    first = _LINE_BREAKS.split(whole, maxsplit=1)[0].rstrip()
    shown = _visible(first[: limit + 1])
    if len(first) == len(whole) and len(shown) <= limit:
        return shown
    return f"{shown[: limit - 2].rstrip()} …"


def name(text: object) -> str:
    """A name in a cell of a table."""
    return line(text, NAME)


def story(text: object, limit: int = STORY) -> str:
    """With its line breaks. The middle is left out: the beginning says what, the end says why."""
    whole = str(text)
    if len(whole) > limit:
        left_out = len(whole) - limit
        whole = f"{whole[: limit // 2]}\n… {left_out:,} characters left out …\n{whole[-limit // 2 :]}"
    return "\n".join(_visible(part) for part in _LINE_BREAKS.split(whole))


def facts(value: dict[str, Any]) -> dict[str, Any]:
    """The same data with every text in it made visible, so that it can be written as JSON."""
    return {story(name): _facts(part) for name, part in value.items()}


def _facts(value: Any) -> Any:
    match value:
        case str():
            return story(value)
        case list():
            return [_facts(part) for part in value]
        case dict():
            return facts(value)
    return value


def moment(wall: float, form: str) -> str:
    """Seconds since 1970 as a date or a time of day here; a question mark where no calendar has them."""
    try:
        return datetime.fromtimestamp(wall).strftime(form)
    except (OverflowError, ValueError, OSError):
        return "?"


def console(file: IO[str] | None = None) -> Console:
    """Where a string is printed as it is: no markup, no emoji codes, no guessed colours."""
    from rich.console import Console  # only who draws needs it

    made = Console(file=file, markup=False, emoji=False, highlight=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = LOG_WIDTH
    return made


def _visible(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\t" else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")
