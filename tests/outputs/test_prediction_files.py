"""Predictions appear together, in order, and never among those of another run."""

from __future__ import annotations

import json

import numpy as np
import pytest

from edl_allreduce.errors import DataError, UsageError
from edl_allreduce.worker.keras.predictions import PredictionFiles


def write_two(files: PredictionFiles, value: float = 0.0) -> None:
    for number in range(2):
        files.write(number, [np.full((2, 3), value + number), np.full((1, 3), value + number)], [])


def index(directory) -> dict:
    return json.loads((directory / "predictions.json").read_text())


def shown(directory) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_nothing_is_seen_until_all_is_there(tmp_path):
    files = PredictionFiles(tmp_path, "run")
    files.begin(overwrite=False)
    write_two(files)
    assert not list(tmp_path.glob("predictions*"))
    files.publish(6, 2, overwrite=False)
    assert shown(tmp_path) == ["predictions-000000.npy", "predictions-000001.npy", "predictions.json"]
    assert index(tmp_path)["files"] == ["predictions-000000.npy", "predictions-000001.npy"]
    assert np.load(tmp_path / "predictions-000001.npy").shape == (3, 3)


def test_what_another_run_wrote_meanwhile_is_not_touched(tmp_path):
    first, second = PredictionFiles(tmp_path, "first"), PredictionFiles(tmp_path, "second")
    for files, value in ((first, 10.0), (second, 20.0)):
        files.begin(overwrite=False)
        write_two(files, value)
    first.publish(6, 2, overwrite=False)
    with pytest.raises(UsageError, match="holds the predictions of another run"):
        second.publish(6, 2, overwrite=False)
    assert index(tmp_path)["run"] == "first"
    assert (np.load(tmp_path / "predictions-000000.npy") == 10.0).all()


def test_replaced_predictions_leave_no_file_behind(tmp_path):
    for number in range(5):
        (tmp_path / f"predictions-{number:06d}.npz").touch()
    (tmp_path / ".predictions-dead").mkdir()
    (tmp_path / "mine.txt").touch()
    files = PredictionFiles(tmp_path, "run")
    with pytest.raises(UsageError, match="--overwrite"):
        files.begin(overwrite=False)
    files.begin(overwrite=True)
    write_two(files)
    files.publish(6, 2, overwrite=True)
    assert shown(tmp_path) == [
        "mine.txt", "predictions-000000.npy", "predictions-000001.npy", "predictions.json",
    ]  # fmt: skip


@pytest.mark.parametrize("moved", [0, 1, 2])
def test_another_worker_concludes_where_one_died(tmp_path, moved):
    files = PredictionFiles(tmp_path, "run")
    write_two(files)
    hidden = tmp_path / ".predictions-run"
    draft = {"records": 6, "files": ["predictions-000000.npy", "predictions-000001.npy"], "run": "run"}
    (hidden / "predictions.json").write_text(json.dumps(draft))
    for number in range(moved):
        name = f"predictions-{number:06d}.npy"
        (hidden / name).rename(tmp_path / name)
    other = PredictionFiles(tmp_path, "run")
    other.begin(overwrite=False)
    for _ in range(2):  # the first may die before it can say that it is done
        other.publish(6, 2, overwrite=False)
    other.begin(overwrite=False)
    assert shown(tmp_path) == ["predictions-000000.npy", "predictions-000001.npy", "predictions.json"]


def test_records_that_could_not_be_read_are_named_since_they_have_no_row(tmp_path):
    files = PredictionFiles(tmp_path, "run")
    files.write(0, [np.zeros((2, 3))], [1])
    files.write(1, [], [3, 4])
    files.publish(5, 2, overwrite=False)
    assert index(tmp_path)["files"] == ["predictions-000000.npy"]
    assert index(tmp_path)["left_out"] == [1, 3, 4]


def test_a_task_that_nobody_here_sees_is_missed(tmp_path):
    files = PredictionFiles(tmp_path, "run")
    write_two(files)
    with pytest.raises(DataError, match="of 2 tasks, expected 3: all workers must see the same --output"):
        files.publish(9, 3, overwrite=False)


@pytest.mark.parametrize(
    ("batch", "names"),
    [({"a": np.ones(2), "b": np.ones(2)}, ["a", "b"]), ([np.ones(2)] * 2, ["arr_0", "arr_1"])],
)
def test_several_outputs_share_a_file(tmp_path, batch, names):
    files = PredictionFiles(tmp_path, "run")
    files.write(0, [batch, batch], [])
    files.publish(4, 1, overwrite=False)
    with np.load(tmp_path / "predictions-000000.npz") as found:
        assert sorted(found) == names and all(found[name].shape == (4,) for name in names)
