"""What is left of a job: the model, and curves."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from edl_allreduce import files
from edl_allreduce.core import protocol
from edl_allreduce.errors import StorageError
from edl_allreduce.storage.remote import Store, store
from edl_allreduce.storage.url import Url, place
from edl_allreduce.worker.keras.export import write_model, write_pass
from edl_allreduce.worker.keras.summaries import Summaries
from edl_allreduce.worker.loop.steps import Written

pytestmark = pytest.mark.tensorflow


@pytest.fixture(scope="module")
def model():
    return keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])


def test_a_model_is_written_for_serving_and_for_keras_and_may_be_written_again(model, tmp_path):
    x = np.ones((4, 3), "float32")
    for _ in range(2):
        assert write_model(model, str(tmp_path / "out")) == Written(str(tmp_path / "out" / "model.keras"))
    served = tf.saved_model.load(tmp_path / "out")
    np.testing.assert_allclose(served.serve(x), model(x), rtol=1e-4, atol=1e-5)
    loaded = keras.saving.load_model(tmp_path / "out" / "model.keras")
    np.testing.assert_allclose(loaded(x), model(x), rtol=1e-4, atol=1e-5)
    assert not [p.name for p in (tmp_path / "out").iterdir() if p.name.startswith(".")]


def test_a_model_that_cannot_be_served_is_still_saved(model, tmp_path, monkeypatch, caplog):
    def refuse(*arguments, **more):
        raise ValueError("cannot be traced")

    monkeypatch.setattr(type(model), "export", refuse)
    write_model(model, str(tmp_path))
    assert (tmp_path / "model.keras").exists() and not (tmp_path / "saved_model.pb").exists()
    assert "only model.keras: ValueError: cannot be traced" in caplog.text


def test_what_dead_writers_left_is_cleared_away(model, tmp_path):
    files.draft_of(tmp_path / "model.keras").write_bytes(b"half")
    files.draft_of(tmp_path / "saved_model").mkdir()
    write_model(model, str(tmp_path))
    assert not [p.name for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_a_model_for_which_there_is_no_room_goes_where_there_is_some(model, tmp_path, monkeypatch):
    save = type(model).save
    full = [tmp_path / "out", tmp_path / "also-full"]

    def save_if_room(self, path, **more):
        if any(place in path.parents for place in full):
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(self, path, **more)

    monkeypatch.setattr(type(model), "save", save_if_room)
    spare = [tmp_path / "missing", full[1], tmp_path]
    full[1].mkdir()
    written = write_model(model, str(full[0]), spare)
    (rescued,) = tmp_path.glob("rescued-model-*")
    assert written.path == str(rescued / "model.keras")
    why = f"the model could not be written to {full[0]}: No space left on device"
    assert written.trouble == f"{why}. It is in {rescued} instead"
    x = np.ones((4, 3), "float32")
    np.testing.assert_allclose(keras.saving.load_model(written.path)(x), model(x), rtol=1e-6)
    assert not list(full[0].iterdir()) and not list(full[1].iterdir())
    assert write_model(model, str(full[0]), [full[1]]) == Written("", why)


def test_a_disk_that_has_no_room_for_the_saved_model_is_named(model, tmp_path, monkeypatch):
    def full(*arguments, **more):
        raise tf.errors.ResourceExhaustedError(None, None, "variables/x; No space left on device [Op:SaveV2]")

    monkeypatch.setattr(type(model), "export", full)
    assert write_model(model, str(tmp_path)) == Written(
        str(tmp_path / "model.keras"),
        f"of the model only model.keras fits into {tmp_path}: No space left on device",
    )


def test_an_epoch_for_which_there_is_no_room_does_not_end_the_training(model, tmp_path, caplog):
    (tmp_path / "file").touch()
    write_pass(model, str(tmp_path / "file"), 0)
    assert "pass-00000 could not be written" in caplog.text


def test_the_model_of_each_epoch_has_a_directory_that_is_done(model, tmp_path):
    for _ in range(2):
        write_pass(model, str(tmp_path), 2)
    assert [p.name for p in tmp_path.iterdir()] == ["pass-00002"]
    names = sorted(p.name for p in (tmp_path / "pass-00002").iterdir())
    assert names == sorted(["done", *(f"{v.path.replace('/', '.')}.npy" for v in model.variables)])


def test_the_model_of_an_epoch_that_is_uploaded_again_is_not_done_before_all_of_it_is_there(
    model, monkeypatch
):
    pytest.importorskip("fsspec")
    url = place("memory://box/passes")
    write_pass(model, str(url), 2)
    assert store().exists(url / "pass-00002" / "done")

    def fails(self: Store, local: Path, url: Url) -> None:
        raise StorageError("no answer")

    monkeypatch.setattr(Store, "upload", fails)
    write_pass(model, str(url), 2)
    assert not store().exists(url / "pass-00002" / "done")


def test_curves_that_cannot_be_written_are_told_once_and_training_goes_on(tmp_path):
    (tmp_path / "file").touch()
    told: list[protocol.Note] = []
    summaries = Summaries(str(tmp_path / "file"), told.append)
    for step in range(0, 30, 10):
        summaries.step(step, loss=1.0, records_per_second=1.0, ring=1)
        summaries.flush()
    (note,) = told
    assert note.kind == protocol.NoteKind.WARNING
    assert f"no more curves are written to {tmp_path / 'file'}" in note.text


def test_without_a_directory_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    summaries = Summaries("")
    summaries.step(10, loss=1.0, records_per_second=1.0, ring=1)
    summaries.flush()
    assert not list(tmp_path.iterdir())
