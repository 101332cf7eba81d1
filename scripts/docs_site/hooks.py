"""What mkdocs asks while it builds the site: pages that are not in docs/, and links that leave it.

The README is the first page, and the other texts of the project's root are pages, too. A link to any other
file of the repository becomes a link to a copy of it, so that the site needs nothing else.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from scripts.docs_site import reference

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = {
    "README.md": "index.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "model_zoo/README.md": "project/model-zoo.md",
}
"""Pages of the site that live outside of docs/, with their places on the site."""
COPIES = "files"
LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is made of the code, what lives elsewhere, and what is linked to."""
    for place, text in reference.pages().items():
        files.append(File.generated(config, place, content=text))
    for source, place in ELSEWHERE.items():
        files.append(File.generated(config, place, content=(ROOT / source).read_text()))
    for path in sorted({*linked_files()}):
        files.append(File.generated(config, f"{COPIES}/{path}", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, /, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead every link to where its target is on the site."""
    return moved(markdown, page.file.src_uri)


def moved(markdown: str, place: str) -> str:
    """The text of the page that has this place on the site, with links that hold there."""
    source = source_of(place)

    def lead(link: re.Match[str]) -> str:
        words, target, anchor = link[1], link[2], link[3] or ""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if (ROOT / path).is_dir():
            return words[1:-1]  # a folder has no page
        return f"{words}({posixpath.relpath(place_of(path), posixpath.dirname(place) or '.')}{anchor})"

    return LINK.sub(lead, markdown)


def source_of(place: str) -> str:
    """The file of the repository behind a page of the site."""
    back = {there: source for source, there in ELSEWHERE.items()}
    return back.get(place, f"docs/{place}")


def place_of(path: str) -> str:
    """Where a file of the repository is on the site."""
    if path in ELSEWHERE:
        return ELSEWHERE[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{COPIES}/{path}"


def linked_files() -> Iterator[str]:
    """Files of the repository that pages link to, and that are no pages themselves."""
    texts = [*(ROOT / source for source in ELSEWHERE), *(ROOT / "docs").rglob("*.md")]
    for text in texts:
        for link in LINK.finditer(text.read_text()):
            name = posixpath.normpath(posixpath.join(text.parent.relative_to(ROOT).as_posix(), link[2]))
            if (ROOT / name).is_file() and name not in ELSEWHERE and not name.startswith(("docs/", "../")):
                yield name
