"""Each model of the zoo reaches a stated quality on a small data set, in seconds.

They train in this process and alone: that a ring gives the same model, and that it is Keras' own, is what
other tests show. The bounds are half-way between guessing and what is usually reached: processors round
differently, and after so few steps that shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from edl_allreduce.core.protocol import Plan, Seat
from edl_allreduce.data.datasets import DATASETS
from edl_allreduce.data.example import encode_example
from edl_allreduce.data.tfrecord import TFRecordWriter
from edl_allreduce.spec import parse_job

pytestmark = [pytest.mark.training, pytest.mark.timeout(600)]

ZOO = Path(__file__).resolve().parents[2] / "model_zoo"

Columns = dict[str, np.ndarray]


def write_examples(folder: Path, columns: Columns, records: int) -> None:
    folder.mkdir(parents=True)
    with TFRecordWriter(folder / "data-00000") as writer:
        for i in range(min(records, len(next(iter(columns.values()))))):
            row = {name: values[i] for name, values in columns.items()}
            writer.write(
                encode_example(
                    {n: v.encode() if isinstance(v, str) else np.asarray(v) for n, v in row.items()}
                )
            )


def enlarged_digits(size: int, colours: int) -> Callable[[], tuple[Columns, Columns]]:
    """The real digits of scikit-learn as large images; with colours, on a coloured ground."""

    def make() -> tuple[Columns, Columns]:
        from sklearn.datasets import load_digits

        bunch = load_digits()
        scale, margin = size // 8, size % 8 // 2
        images = np.kron(bunch.images, np.ones((scale, scale))) * (255 / 16)
        images = np.pad(
            images, ((0, 0), (margin, size - 8 * scale - margin), (margin, size - 8 * scale - margin))
        )
        if colours:
            ground = np.random.default_rng(0).uniform(0, 100, (len(images), 1, 1, colours))
            images = np.clip(images[..., None] + ground, 0, 255)
        columns = {"image": images.astype("float32"), "label": bunch.target.astype("int64")}
        return {k: v[:1200] for k, v in columns.items()}, {k: v[1200:1500] for k, v in columns.items()}

    return make


def made(name: str) -> Callable[[], tuple[Columns, Columns]]:
    def make() -> tuple[Columns, Columns]:
        splits = DATASETS[name].load(None)
        return splits.train, splits.test

    return make


@dataclass(frozen=True)
class Case:
    """A model, its data, and what it must reach."""

    model_def: str
    data: Callable[[], tuple[Columns, Columns]]
    metric: str
    at_least: float
    minibatch: int = 64
    epochs: int = 1
    records: int = 100_000
    csv: bool = False


DIGITS, COLOURED = enlarged_digits(28, 0), enlarged_digits(32, 3)
CENSUS, FRAPPE, IRIS = made("census"), made("frappe"), made("iris")
CASES = [
    Case("mnist.mnist_functional_api.custom_model", DIGITS, "accuracy", 0.6, 32, epochs=3, records=800),
    Case("mnist.mnist_subclass.CustomModel", DIGITS, "accuracy", 0.6, 32, epochs=3, records=800),
    Case("cifar10.cifar10_functional_api.custom_model", COLOURED, "accuracy", 0.5, 32, 5, records=800),
    Case("cifar10.resnet20.custom_model", COLOURED, "accuracy", 0.3, 32, epochs=3, records=800),
    Case("census.wide_deep.custom_model", CENSUS, "auc", 0.8, epochs=2, records=6000),
    Case("deepfm.deepfm_functional_api.custom_model", FRAPPE, "auc", 0.65, 128, epochs=3, records=12000),
    Case("iris.dnn.custom_model", IRIS, "accuracy", 0.75, 16, epochs=30, csv=True),
]  # fmt: skip


def write_csv(folder: Path, columns: Columns) -> None:
    folder.mkdir(parents=True)
    rows = zip(*columns.values(), strict=True)
    lines = [",".join(columns), *(",".join(str(v) for v in row) for row in rows)]
    (folder / "data.csv").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.model_def)
def test_it_learns(case: Case, tmp_path: Path) -> None:
    from edl_allreduce.worker.lone import LoneMaster
    from edl_allreduce.worker.ring.solo import SoloRing
    from edl_allreduce.worker.start.session import prepare_alone

    for name, columns in zip(("train", "test"), case.data(), strict=True):
        if case.csv:
            write_csv(tmp_path / name, columns)
        else:
            write_examples(tmp_path / name, columns, case.records)
    flags = {
        "job_name": "zoo",
        "distribution_strategy": "Local",
        "model_zoo": ZOO,
        "model_def": case.model_def,
        "training_data": tmp_path / "train",
        "validation_data": tmp_path / "test",
        "minibatch_size": case.minibatch,
        "num_epochs": case.epochs,
        "output": tmp_path / "output",
    }
    spec = parse_job("train", [f"--{name}={value}" for name, value in flags.items()]).spec
    lone = LoneMaster(Plan(1, (Seat("local", 0, "127.0.0.1"),)), rank=0)
    engine = prepare_alone(spec, lone.attendant(), SoloRing())
    engine.run()
    assert (engine.state.journal.metrics[case.metric] or 0) >= case.at_least, engine.state.journal.metrics
    assert (tmp_path / "output" / "saved_model.pb").exists()
    assert (tmp_path / "output" / "model.keras").exists()
