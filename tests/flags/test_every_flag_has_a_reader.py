"""A flag that nobody reads is a promise that nobody keeps.

Readers are found in the source: `spec.flag`, a typed part of it (`spec.typed.…`), or its name where a module
goes through several flags by name (`getattr(spec, …)`). The package that declares and checks flags does not
count.
"""

from __future__ import annotations

import ast
from functools import cached_property
from pathlib import Path

import pytest

import edl_allreduce
from edl_allreduce.spec import JobSpec
from edl_allreduce.spec.typed import TYPED, TypedFlag, TypedFlags

PACKAGE = Path(edl_allreduce.__file__).parent
FLAGS = frozenset(JobSpec.__dataclass_fields__)
HOLDERS = frozenset({"spec", "own"})
"""What variables that hold a job are called here."""

WITHOUT_READER: dict[str, str] = {}
"""Flags that need no reader, each with the reason."""


def is_job(node: ast.expr) -> bool:
    return (isinstance(node, ast.Name) and node.id in HOLDERS) or (
        isinstance(node, ast.Attribute) and node.attr == "spec"
    )


def readers(source: str) -> set[str]:
    """The flags, properties of a job and typed parts (`typed.…`) that a module reads."""
    found: set[str] = set()
    by_name = False
    words: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=value, attr=name) if is_job(value):
                found.add(name)
            case ast.Attribute(value=ast.Attribute(value=value, attr="typed"), attr=name) if is_job(value):
                found.add(f"typed.{name}")
            case ast.Call(func=ast.Name(id="getattr"), args=[job, *_]) if is_job(job):
                by_name = True
            case ast.Constant(value=str(word)):
                words.add(word)
    return found | (words & FLAGS if by_name else set())


def behind(name: str) -> set[str]:
    """The flags that a property of a job or a typed part is made of."""
    owner = TypedFlags if name.startswith("typed.") else JobSpec
    member = vars(owner).get(name.removeprefix("typed."))
    if isinstance(member, TypedFlag):
        return {member.flag}
    function = getattr(member, "fget", None) or (member.func if isinstance(member, cached_property) else None)
    used = set(function.__code__.co_names) if function is not None else set()
    parts = {flag for flag, part in TYPED.items() if part in used} if owner is TypedFlags else set()
    return (used & FLAGS) | parts


def all_that_is_read(sources: dict[str, str]) -> set[str]:
    direct = set().union(*(readers(text) for text in sources.values()))
    return (direct & FLAGS) | set().union(*(behind(name) for name in direct))


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    files = (f for f in PACKAGE.rglob("*.py") if f.relative_to(PACKAGE).parts[0] != "spec")
    return {str(file.relative_to(PACKAGE)): file.read_text() for file in files}


def test_every_flag_has_a_reader(sources):
    assert FLAGS - all_that_is_read(sources) == WITHOUT_READER.keys()


@pytest.mark.parametrize(
    ("line", "flag"),
    [
        ("self.spec.seed", "seed"),
        ("spec.typed.volumes", "volume"),
        ("spec.typed.master_resources", "master_resource_limit"),
        ("parsed.spec.checkpoints", "checkpoint_dir"),
        ("for key in ('loss', 'feed'): getattr(spec, key)", "feed"),
    ],
)
def test_a_reader_is_seen(line, flag):
    assert flag in all_that_is_read({"module": line})


@pytest.mark.parametrize(
    "line", ["arguments.seed", "'loss'", "spec_of.seed", "spec.typed.nothing", "seed = 1"]
)
def test_other_things_of_that_name_do_not_count(line):
    assert not all_that_is_read({"module": line}) & {"seed", "loss"}


def test_a_flag_loses_its_reader_and_is_missed(sources):
    """The scan is worth something: without the modules that read it, a flag is unread."""
    rest = {name: text for name, text in sources.items() if "tensorboard_log_dir" not in text}
    assert len(rest) < len(sources)
    assert "tensorboard_log_dir" not in all_that_is_read(rest)
