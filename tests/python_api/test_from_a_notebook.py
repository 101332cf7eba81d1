"""Functions and models of a notebook become a model file; editors know the arguments; jobs have words."""

from __future__ import annotations

import inspect
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from edl_allreduce.api import submit
from edl_allreduce.cluster.shipping import ship
from edl_allreduce.errors import UsageError
from edl_allreduce.spec import flag_types, submit_flags

NOTEBOOK = """
import sys

import keras
import keras.layers as layers

from edl_allreduce.api import submit

UNITS = 16


def net():
    return keras.Sequential([keras.Input((64,)), layers.Dense(UNITS, "relu"), layers.Dense(10)])


def loss(labels, predictions):
    return keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)


def optimizer():
    return keras.optimizers.SGD(0.1)


def scaled(record):
    return record["x"], record["y"]


def feed(dataset, mode, metadata):
    return dataset.map(scaled)


data, output = sys.argv[1:]
flags = dict(training_data=data, num_workers=1, num_epochs=2, minibatch_size=64, feed=feed)
by_functions = submit(job_name="functions", model_def=net, loss=loss, optimizer=optimizer, **flags)
made = net()
made.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
print(repr(by_functions.wait(240)))
by_model = submit(job_name="model", model_def=made, output=output, **flags)
done = by_model.wait(240)
print(repr(done), done.loss)
keras.saving.load_model(done.path)
"""


@pytest.mark.training
def test_functions_and_a_compiled_model_are_trained(tmp_path, digits_data, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "notebook_cells.py").write_text(NOTEBOOK)
    done = subprocess.run(
        [sys.executable, "notebook_cells.py", str(digits_data), str(tmp_path / "out")],
        **{"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 500},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "JobStatus('functions', Succeeded, step" in done.stdout
    assert f"model {tmp_path / 'out'}/model.keras" in done.stdout


def test_every_flag_is_an_argument_that_editors_know():
    assert Path(submit_flags.__file__).read_text() == flag_types.text(), "write it again: see spec/flag_types"
    parameters = inspect.signature(submit).parameters
    assert parameters["num_workers"].default == 2
    assert set(submit_flags.TrainFlags.__annotations__) == set(parameters) - {"spec"}


def test_names_are_checked_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with pytest.raises(UsageError, match="job_name"):
        submit(job_name="../../up", model_def=uses_a_table, feed=uses_a_table, training_data="data")
    assert not list(tmp_path.iterdir())


def test_a_lambda_cannot_be_sent(tmp_path):
    with pytest.raises(UsageError, match="feed: a lambda"):
        ship({"feed": lambda dataset, mode, metadata: dataset}, tmp_path)


def test_a_function_that_needs_what_is_no_text_says_which(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", sys.modules[__name__])
    with pytest.raises(UsageError, match="feed uses TABLE, a object, which cannot be sent"):
        ship({"feed": uses_a_table}, tmp_path)


TABLE = object()


def uses_a_table(dataset, mode, metadata):
    return dataset, TABLE


labels = metadata = TABLE
LIMIT = 3


def at_most(limit):
    return lambda function: function


@at_most(LIMIT)
def has_names_of_its_own(labels, metadata, mode=LIMIT):
    TABLE = [labels + mode for labels in metadata]

    def inner(metadata):
        return TABLE, metadata

    return inner(labels)


def test_parameters_and_locals_are_not_taken_for_what_the_notebook_has_of_that_name(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", sys.modules[__name__])
    monkeypatch.setattr(at_most, "__module__", "__main__")
    ship({"model_def": has_names_of_its_own}, tmp_path)
    shipped = runpy.run_path(str(tmp_path / "notebook.py"))
    made = shipped["has_names_of_its_own"]
    assert made(7, [1, 2]) == has_names_of_its_own(7, [1, 2]) == ([4, 5], 7)
    assert "labels" not in shipped and "TABLE" not in shipped
    assert "at_most" in shipped, "what decorators and defaults need goes with them"
