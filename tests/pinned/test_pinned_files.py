"""A job runs the model files that it began with, whatever happens to them on disk."""

from __future__ import annotations

import inspect
import linecache
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl_allreduce.cluster import pinned
from edl_allreduce.errors import ModelError
from edl_allreduce.spec import JobSpec
from edl_allreduce.worker.keras import pinned_imports, zoo

CONTRACT = """
def loss(labels, predictions): return 0.0
def optimizer(): return None
def feed(dataset, mode, metadata): return dataset
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A zoo whose model file imports in every way."""
    root = tmp_path / "zoo"
    files = {
        "mine/net.py": "import helper\nfrom shared import losses\nfrom shared.deep.more import X\n"
        "import numpy, beside_all\n"
        "from pathlib import Path\nNOTE = Path(__file__).with_name('note.txt').read_text()\n"
        "def custom_model(): return helper.WIDTH\n" + CONTRACT,
        "mine/helper.py": "WIDTH = 24\ndef late():\n    import lazy_one\n    raise ValueError('helper')\n",
        "mine/lazy_one.py": "",
        "mine/unused.py": "",
        "mine/note.txt": "kept outside",
        "shared/__init__.py": "",
        "shared/losses.py": "from . import basics\ndef focal(labels, predictions): return basics.ONE\n",
        "shared/basics.py": "ONE = 1.0\n",
        "shared/deep/__init__.py": "",
        "shared/deep/more.py": "from ..basics import ONE\nX = ONE\n",
        "elsewhere/other.py": "",
        "beside_all.py": "",
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def clean_imports() -> Iterator[None]:
    """Leave this process as it was."""
    path, meta, modules = list(sys.path), list(sys.meta_path), set(sys.modules)
    yield
    sys.path[:], sys.meta_path[:] = path, meta
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    linecache.clearcache()


def spec_of(tree: Path, **flags: str) -> JobSpec:
    return JobSpec(model_zoo=str(tree), model_def="mine.net.custom_model", **flags)


def begin(tree: Path, tmp_path: Path, **flags: str) -> dict[str, str]:
    return pinned.pin(spec_of(tree, **flags), tmp_path / "job")


def test_what_the_model_file_imports_from_its_surroundings_is_kept_and_nothing_else(tree):
    names = {str(path.relative_to(tree)) for path in pinned.collect(spec_of(tree))}
    assert names == {
        "mine/net.py", "mine/helper.py", "mine/lazy_one.py", "beside_all.py", "shared/__init__.py",
        "shared/losses.py", "shared/basics.py", "shared/deep/__init__.py", "shared/deep/more.py",
    }  # fmt: skip


def test_files_that_other_flags_name_are_kept_too(tree):
    kept = pinned.collect(spec_of(tree, loss="elsewhere.other.focal"))
    assert tree / "elsewhere/other.py" in kept


def test_a_file_that_cannot_be_parsed_is_kept_as_it_is(tree):
    (tree / "mine/net.py").write_text("def custom_model(:")
    assert list(pinned.collect(spec_of(tree))) == [tree / "mine/net.py"]


def test_what_is_missing_or_misspelt_is_left_to_the_worker_to_tell(tree, tmp_path):
    assert pinned.pin(JobSpec(model_zoo=str(tree), model_def="mine.nothing.custom_model"), tmp_path) == {}
    assert pinned.pin(JobSpec(model_zoo=str(tree), model_def="no dots"), tmp_path) == {}


def test_a_later_worker_imports_the_old_text_under_the_old_path(tree, tmp_path, clean_imports):
    environment = begin(tree, tmp_path)
    (tree / "mine/helper.py").write_text("WIDTH = 32\n")
    (tree / "mine/net.py").unlink()
    (tree / "shared/losses.py").write_text("def focal(:")
    changed = pinned_imports.install(environment)
    assert sorted(Path(name).name for name in changed) == ["helper.py", "losses.py", "net.py"]
    definition = zoo.load_definition(spec_of(tree, loss="shared.losses.focal"))
    assert definition.model() == 24
    assert definition.loss(None, None) == 1.0
    assert definition.path == tree / "mine/net.py"
    net = sys.modules["mine.net"]
    assert net.NOTE == "kept outside"  # files next to the model file are found
    assert "return helper.WIDTH" in inspect.getsource(net.custom_model)
    assert not list(tree.rglob("*.pyc")), "a cache would outlive the job"


def test_tracebacks_show_the_text_that_runs(tree, tmp_path, clean_imports):
    environment = begin(tree, tmp_path)
    (tree / "mine/helper.py").write_text("\n" * 10 + "WIDTH = 32\n")
    pinned_imports.install(environment)
    zoo.load_definition(spec_of(tree))
    try:
        sys.modules["helper"].late()
    except ValueError as error:
        told = "".join(traceback.format_exception(error))
    assert "raise ValueError('helper')" in told


def test_without_a_change_nothing_is_told(tree, tmp_path, clean_imports):
    assert pinned_imports.install(begin(tree, tmp_path)) == []


def test_a_worker_that_nobody_told_reads_what_is_there(tree, clean_imports):
    assert pinned_imports.install({}) == []
    (tree / "mine/helper.py").write_text("WIDTH = 32\n")
    assert zoo.load_definition(spec_of(tree)).model() == 32


def test_a_job_that_begins_again_keeps_the_files_of_that_day(tree, tmp_path, clean_imports):
    begin(tree, tmp_path)
    (tree / "mine/helper.py").write_text("WIDTH = 32\n")
    assert pinned_imports.install(begin(tree, tmp_path)) == []
    assert zoo.load_definition(spec_of(tree)).model() == 32


@pytest.mark.parametrize(
    ("body", "words"),
    [("raise ValueError('mine')", "ValueError: mine"), ("import sys; sys.exit(3)", "sys.exit(3) was called")],
)
def test_what_raises_while_the_model_is_built_is_certain(tree, clean_imports, body, words):
    (tree / "mine/net.py").write_text(f"def custom_model(): {body}\n{CONTRACT}")
    with pytest.raises(ModelError, match=r"net\.py: custom_model\(\) raised") as raised:
        zoo.load_definition(spec_of(tree)).model()
    assert words in str(raised.value)
