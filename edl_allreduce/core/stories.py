"""What went wrong in user code, told so that its author finds the line: the exception last and once.

TensorFlow hands an exception through a hundred frames of its own, repeats it as text inside the texts of
others, and adds names of nodes. `tell` keeps the user's frames and the user's words.
"""

from __future__ import annotations

import linecache
import re
import site
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import dropwhile, groupby
from pathlib import Path

SHOWN_FRAMES = 12
"""Frames of user code; a recursion has thousands."""
SHOWN_CHARACTERS = 2000

_EMBEDDED = "Traceback (most recent call last):"
_FRAME = re.compile(r'File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<name>[^\s*]+)')
_RAISED = re.compile(r"^\s*(?P<kind>[A-Za-z_][\w.]*(?:Error|Exception|Warning|Exit|Interrupt))\b")
_NODES = re.compile(
    r"^\s*(Detected at node|\[\[\{\{node|Node: |\[Op:|Stack trace for op|\d+ (derived|root) error)"
)
_OP_TAIL = re.compile(r"\s*\[\[\{\{node [^\]]*\]\]|\s*\[Op:[^\]]*\]")


@dataclass(frozen=True)
class Frame:
    """A line of code that was on its way."""

    file: str
    line: int
    name: str

    @property
    def owner(self) -> str:
        """The package that the file belongs to; empty for user code."""
        return _owner(self.file)

    def told(self) -> str:
        code = linecache.getline(self.file, self.line).strip()
        return f'  File "{self.file}", line {self.line}, in {self.name}' + (f"\n    {code}" if code else "")


@dataclass(frozen=True)
class Story:
    """An exception for people."""

    summary: str
    """One line."""
    text: str
    """Frames of user code, the others folded, the exception last."""
    place: str
    """The exception and the line of user code that it came from; the same for the same failure."""
    own: bool
    """Whether user code had a part in it."""


def tell(error: BaseException) -> Story:
    """The last exception that came out of user code, with the way there; or else the last one at all.

    The way begins where user code begins: how it came to be called is nobody's question.
    """
    # An error of ours that quotes a traceback speaks of its cause.
    otherwise = error.__cause__ if error.__cause__ is not None and _EMBEDDED in _text(error) else error
    root = next((e for e in _chain(error) if any(not f.owner for f in _frames(e))), otherwise)
    frames = _frames(root)
    kind, words = _words(root)
    last = f"{kind}: {words}" if words else kind
    own = [frame for frame in frames if not frame.owner]
    lines = list(_folded(frames)) if own else []
    summary = _first_line(last)
    if error is not root and _is_ours(error):
        wrapper = f"{type(error).__name__}: {_first_line(_text(error))}"
        lines.insert(0, wrapper)
        summary = wrapper if _first_line(words) in wrapper else f"{wrapper.rstrip('.:')}: {summary}"
    where = f" at {own[-1].file}:{own[-1].line}" if own else ""
    return Story(summary, "\n".join([*lines, last]), last + where, bool(own))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """From the one that was caught to its first cause."""
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        hidden = following.__suppress_context__
        following = following.__cause__ or (None if hidden else following.__context__)


def _frames(error: BaseException) -> list[Frame]:
    """Of its traceback, and of those that its text carries: code that TensorFlow called back."""
    real = [Frame(f.filename, f.lineno or 0, f.name) for f in traceback.extract_tb(error.__traceback__)]
    if _is_ours(error):
        return real  # what our own texts quote is also in the chain
    told = [Frame(m["file"], int(m["line"]), m["name"]) for m in _FRAME.finditer(_text(error))]
    return real + [frame for frame in told if frame not in real]


def _folded(frames: list[Frame]) -> Iterator[str]:
    frames = list(dropwhile(lambda frame: frame.owner, frames))
    own = sum(not frame.owner for frame in frames)
    skipped = 0
    for foreign, group in groupby(frames, key=lambda frame: bool(frame.owner)):
        members = list(group)
        if foreign:
            yield f"  … {len(members)} frame{'s' * (len(members) > 1)} of {_owners(members)} …"
            continue
        for frame in members:
            skipped += 1
            if own - skipped < SHOWN_FRAMES:
                yield frame.told()
            elif skipped == 1:
                yield f"  … {own - SHOWN_FRAMES} more of your own …"


def _owners(frames: Iterable[Frame]) -> str:
    return ", ".join(sorted({frame.owner for frame in frames}))


def _words(error: BaseException) -> tuple[str, str]:
    """The exception's kind and text, as the user's own code said it where TensorFlow wrapped it."""
    kind, text = type(error).__name__, _text(error).strip()
    if isinstance(error, SystemExit):
        return "SystemExit", f"sys.exit({'' if error.code is None else repr(error.code)}) was called"
    if _is_ours(error):
        return kind, text.partition(_EMBEDDED)[0].strip()
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > 1:
        kind, lines = _dug_out(kind, lines)
    cut = [_OP_TAIL.sub("", line) for line in lines if not _NODES.match(line)]
    words = "\n".join(line for line in cut if line.strip()).strip() or text
    if len(words) > SHOWN_CHARACTERS:
        words = words[:SHOWN_CHARACTERS] + " …"
    return kind, words


def _dug_out(kind: str, lines: list[str]) -> tuple[str, list[str]]:
    """An exception that is quoted after its frames: `ValueError: my own words` and what follows."""
    frames = [number for number, line in enumerate(lines) if _FRAME.search(line)]
    if not frames:
        return kind, lines
    for number in range(frames[-1] + 1, len(lines)):
        raised = _RAISED.match(lines[number])
        if raised is not None:
            _, _, words = lines[number].partition(":")
            following = [line.strip() for line in lines[number + 1 :]]
            return raised["kind"].rpartition(".")[2], [words.strip(), *following]
    # Source lines are indented below their frames; what is not, and comes last, is the text.
    following = [line for line in lines[frames[-1] + 1 :] if not line.startswith("    ")]
    return kind, following or lines[: frames[0]]


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  a user's own exception may fail to describe itself, and is told all the same
        return "(it cannot describe itself)"


def _is_ours(error: BaseException) -> bool:
    return type(error).__module__.startswith("edl_allreduce")


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0].strip()


_HERE = str(Path(__file__).resolve().parents[1])
_PYTHON = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "scripts")}
_PACKAGES = {sysconfig.get_path(name) for name in ("purelib", "platlib")} | {
    *site.getsitepackages(),
    site.getusersitepackages(),
}


def _owner(file: str) -> str:
    """Generated and frozen code counts to Python: nobody can open it."""
    for packages in _PACKAGES:
        if file.startswith(packages + "/"):
            return file[len(packages) + 1 :].partition("/")[0].removesuffix(".py")
    if file.startswith(_HERE + "/"):
        return "edl_allreduce"
    generated = file.startswith("<") or "__autograph_generated_file" in file
    in_python = any(file.startswith(place + "/") for place in _PYTHON)
    return "Python" if generated or in_python else ""


def whole(error: BaseException) -> str:
    """The traceback as Python prints it, for logs."""
    return "".join(traceback.format_exception(error))
