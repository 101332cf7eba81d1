"""What workers compare before they train together, and how a difference is named."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import pytest

from edl_allreduce.core.course import DIGEST, differences
from edl_allreduce.spec import JobSpec
from edl_allreduce.worker.keras import fingerprint, zoo

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize(
    ("rest", "own", "words"),
    [
        ({"a": "1"}, {"a": "1"}, ""),
        ({"rate": "0.1"}, {"rate": "0.2"}, "rate (0.2, the rest 0.1)"),
        ({"file net.py": DIGEST + "1"}, {"file net.py": DIGEST + "2"}, "file net.py"),
        ({}, {"file more.py": DIGEST + "2"}, "file more.py (only it has that)"),
        ({"file more.py": DIGEST + "2"}, {}, "file more.py (only the rest have that)"),
        ({"x": "1" * 500}, {"x": "2"}, f"x (2, the rest {'1' * 59}…)"),
        (
            {str(n): "1" for n in range(9)},
            {str(n): "2" for n in range(9)},
            "; ".join(f"{n} (2, the rest 1)" for n in range(6)) + "; and 3 more",
        ),
    ],
)
def test_a_difference_is_named(rest: dict[str, str], own: dict[str, str], words: str) -> None:
    assert differences(rest, own) == words


MODEL = """
import keras
from parts import WIDTH
RATE = 0.1
def custom_model():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(WIDTH), keras.layers.Dense(2)])
def loss(labels, predictions): return predictions
def optimizer(): return keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(RATE, 100))
def feed(dataset, mode, metadata): return dataset
"""


@pytest.fixture
def described(tmp_path: Path) -> Iterator[Callable[..., dict[str, str]]]:
    """The fingerprint of a process that imported a zoo with these texts."""
    path = list(sys.path)

    def describe(folder: str, *, model: str = MODEL, width: int = 3, **flags: Any) -> dict[str, str]:
        place = tmp_path / folder
        place.mkdir()
        (place / "net.py").write_text(model)
        (place / "parts.py").write_text(f"WIDTH = {width}\n")
        spec = JobSpec(model_zoo=str(place), model_def="net.custom_model", **flags)
        try:
            definition = zoo.load_definition(spec)
            return fingerprint.of_model(spec, definition.path, definition.model(), definition.optimizer())
        finally:
            sys.path[:] = path
            for name in ("net", "parts"):
                sys.modules.pop(name, None)

    yield describe
    sys.path[:] = path


def test_the_same_files_in_another_place_are_the_same(described):
    assert differences(described("one"), described("other")) == ""


def test_a_file_that_is_imported_is_compared_and_so_are_the_variables(described):
    words = differences(described("one"), described("other", width=5))
    assert words.startswith("file parts.py; variables (4 with 37 numbers")


def test_another_rate_is_named(described):
    words = differences(described("one"), described("other", model=MODEL.replace("0.1", "0.2")))
    assert words.startswith("file net.py; optimizer learning_rate (")


def test_another_loss_is_seen_in_its_file(described):
    changed = MODEL.replace("return predictions", "return predictions * 1000")
    assert differences(described("one"), described("other", model=changed)) == "file net.py"


def test_flags_that_change_the_model_are_compared(described):
    one = described("one", model=MODEL.replace("custom_model()", "custom_model(units=1)"))
    words = differences(one, {**one, "--model_params": "units=2"})
    assert words == "--model_params (units=2, the rest )"


def test_nothing_that_only_this_process_knows_is_compared(described):
    """Addresses of objects and counters of names would make every worker differ."""
    rate = "optimizer(): return keras.optimizers.SGD(0.1, name='sgd_%d')"
    models = [
        MODEL.partition("def optimizer")[0] + f"def {rate % n}\ndef feed(d, m, x): return d" for n in (1, 2)
    ]
    one, other = (described(f"place{n}", model=text) for n, text in enumerate(models))
    assert differences(one, other) == "file net.py"
    assert "0x" not in str(one)


def test_what_has_no_plain_value_is_named_by_its_kind():
    class Odd(keras.optimizers.SGD):
        def get_config(self) -> dict[str, Any]:
            return {"function": len, "object": object(), "list": [1, None], "nested": {"a": 1.5}}

    parts = fingerprint._optimizer(Odd(0.1))
    assert parts["optimizer function"] == "len" and parts["optimizer object"] == "object"
    assert parts["optimizer list"] == "[1, None]" and parts["optimizer nested"] == "{a: 1.5}"
