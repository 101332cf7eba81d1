"""What the docs name is there: files, folders, links; and the drawing of the house leaves no room out."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "edl_allreduce"
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
HOUSE = [DOCS / "architecture.md", DOCS / "glossary.md", DOCS / "how-it-works.md"]
HOUSE += sorted((DOCS / "decisions").glob("*.md"))

FILE = re.compile(r"(?<![\w./-])((?:[\w-]+/)*[\w-]+\.py)\b")
FOLDER = re.compile(r"`((?:[\w-]+/)+)`")
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")


def name(page):
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", HOUSE, ids=name)
def test_every_file_and_folder_that_a_page_about_the_house_names_is_there(page):
    named = {*FILE.findall(page.read_text()), *FOLDER.findall(page.read_text())}
    missing = sorted(path for path in named if not any((base / path).exists() for base in (PACKAGE, ROOT)))
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_somewhere(page):
    assert not [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]


def test_the_drawing_of_the_layers_has_every_room():
    drawing = (DOCS / "architecture.md").read_text().split("```")[1]
    rooms = [
        f"{path.name}/" if path.is_dir() else path.name
        for path in PACKAGE.iterdir()
        if (path.is_dir() and (path / "__init__.py").exists()) or path.suffix == ".py"
    ]
    assert not sorted(room for room in rooms if room != "__init__.py" and room not in drawing.split())


def test_the_drawing_has_the_order_that_the_linter_enforces():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    enforced = next(contract["layers"] for contract in settings if contract["type"] == "layers")
    drawing = (DOCS / "architecture.md").read_text().split("```")[1].splitlines()
    drawn = [{word.removesuffix("/").removesuffix(".py") for word in line.split()} for line in drawing]
    places = [
        next(at for at, line in enumerate(drawn) if {*layer.split(" | ")} <= line) for layer in enforced
    ]
    assert places == sorted(places)
