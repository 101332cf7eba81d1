"""Shell blocks of the pages."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(?:sh|bash)\b([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN = ('title="not run here', 'title="not run by the tests')


@dataclass(frozen=True)
class Block:
    """`marked`: the page says that nobody ran it."""

    text: str
    marked: bool


def blocks(page: Path) -> list[Block]:
    """In the order of the page."""
    return [
        Block(text, any(mark in words for mark in NOT_RUN)) for words, text in FENCE.findall(page.read_text())
    ]
