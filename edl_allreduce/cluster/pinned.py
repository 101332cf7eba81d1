"""The model files of a local job as they were when it began.

A worker that starts later must run what the others run, whatever an editor did to the files meanwhile. So
the master keeps copies in the job's directory, and workers import the copies under the original names
(`worker.pinned_imports`). Which files those are is read from their imports, without running anything.
"""

from __future__ import annotations

import ast
import hashlib
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from edl_allreduce.contract import PINNED_FILES
from edl_allreduce.errors import UsageError
from edl_allreduce.files import write
from edl_allreduce.spec import JobSpec
from edl_allreduce.spec.params import split_model_def

DIRECTORY = "pinned"
MANIFEST = "manifest.json"
OURS = Path(__file__).resolve().parents[1]
MOST_FILES = 500
MOST_BYTES = 20 * 2**20
PARTS = ("loss", "optimizer", "feed", "eval_metrics_fn", "callbacks", "custom_data_reader",
         "prediction_outputs_processor")  # fmt: skip
"""Flags that may name a function of another file of the zoo."""


class Copy(msgspec.Struct, frozen=True):
    """One file that is kept."""

    copy: str
    """Its name next to the manifest."""
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """All files that are kept, by their absolute paths."""

    files: dict[str, Copy]


def pin(spec: JobSpec, job_dir: Path) -> dict[str, str]:
    """Copy the model files of a job that begins; gives the environment in which workers find the copies."""
    directory = (job_dir / DIRECTORY).resolve()
    shutil.rmtree(directory, ignore_errors=True)  # of the run before: a job that begins again reads anew
    texts = collect(spec)
    if not texts:
        return {}
    directory.mkdir(parents=True)
    files = {}
    for number, (path, text) in enumerate(texts.items()):
        name = f"{number:03d}-{path.name}"
        (directory / name).write_bytes(text)
        files[str(path)] = Copy(name, digest(text))
    manifest = directory / MANIFEST
    write(manifest, msgspec.json.format(msgspec.json.encode(Manifest(files))))
    return {PINNED_FILES: str(manifest)}


def read_manifest(path: Path) -> dict[Path, tuple[bytes, str]]:
    """Text and digest of each file that was kept."""
    manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    return {
        Path(file): ((path.parent / kept.copy).read_bytes(), kept.sha256)
        for file, kept in manifest.files.items()
    }


def digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def collect(spec: JobSpec) -> dict[Path, bytes]:
    """The model file, files that flags name, and what these import from the zoo or their own directory."""
    zoo = Path(spec.model_zoo or ".").resolve()
    first = list(_named(spec, zoo))
    roots = list(dict.fromkeys([*(path.parent for path in first), zoo]))
    found: dict[Path, bytes] = {}
    todo = first
    while todo and len(found) < MOST_FILES:
        path = todo.pop(0)
        if path in found:
            continue
        try:
            text = path.read_bytes()
        except OSError:
            continue  # a worker will say what is missing
        if sum(map(len, found.values())) + len(text) > MOST_BYTES:
            break
        found[path] = text
        todo += _imported(text, path, roots)
    return found


def _named(spec: JobSpec, zoo: Path) -> Iterator[Path]:
    flags = [spec.model_def, *(getattr(spec, part) for part in PARTS)]
    for value in flags:
        if "." in value:
            try:
                relative, _ = split_model_def(value)
            except UsageError:
                continue  # a worker will say what is wrong with it
            yield zoo / relative


def _imported(text: bytes, path: Path, roots: list[Path]) -> Iterator[Path]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files(alias.name.split("."), [*roots, *_above(roots)], roots)
        elif isinstance(node, ast.ImportFrom):
            words = node.module.split(".") if node.module else []
            places = [path.parents[node.level - 1]] if node.level else [*roots, *_above(roots)]
            for alias in node.names:
                yield from _files([*words, alias.name], places, roots)


def _above(roots: Iterable[Path]) -> list[Path]:
    """Where `import model_zoo.mnist` finds a zoo by its own name."""
    return [root.parent for root in roots]


def _files(words: list[str], places: Iterable[Path], roots: list[Path]) -> Iterator[Path]:
    """Of a.b.c: a/__init__.py, a/b/__init__.py or a/b.py, and so on, where they lie below a root."""
    for place in places:
        for count in range(1, len(words) + 1):
            stem = place.joinpath(*words[:count])
            for path in (stem / "__init__.py", stem.with_name(f"{stem.name}.py")):
                below = any(path.is_relative_to(root) for root in roots) and not path.is_relative_to(OURS)
                if below and path.is_file():
                    yield path
