"""Curves, flags and the graph of a model, read back with TensorBoard's own reader."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import keras
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata as hparams_reader

from edl_allreduce.spec import parse_job
from edl_allreduce.worker.keras import hparams
from edl_allreduce.worker.keras.summaries import Summaries

pytestmark = pytest.mark.tensorflow

FLAGS = (
    "--job_name=digits",
    "--model_def=a.b.c",
    "--training_data=d",
    "--minibatch_size=16",
    "--num_workers=3",
)


def read(directory: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(directory), size_guidance={"tensors": 0})
    return accumulator.Reload()


def curve(reader: EventAccumulator, tag: str) -> dict[int, float]:
    return {event.step: event.value for event in reader.Scalars(tag)}


def model() -> keras.Model:
    return keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2, name="last")])


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., EventAccumulator]:
    def write(*flags: str, of: keras.Model | None = None) -> EventAccumulator:
        spec = parse_job("train", [*FLAGS, *flags]).spec
        begun = hparams.session(hparams.hparams_of(spec), spec.job_name, 1000.5)
        graph = hparams.graph(of if of is not None else model())
        summaries = Summaries(str(tmp_path), about=lambda: [begun] if graph is None else [begun, graph])
        for step in range(1, 21):
            summaries.step(step, loss=1 / step, records_per_second=100.0, ring=3)
        summaries.evaluation(20, {"accuracy": 0.5})
        summaries.pause(20, 0.25, 2)
        summaries.flush()
        return read(tmp_path)

    return write


def test_curves_of_loss_speed_ring_metrics_and_pauses(written):
    reader = written()
    assert curve(reader, "train/loss") == {10: pytest.approx(0.1), 20: pytest.approx(0.05)}
    assert curve(reader, "train/records_per_second") == {10: 100.0, 20: 100.0}
    assert curve(reader, "ring/size")[10] == 3 and curve(reader, "ring/pause_seconds") == {20: 0.25}
    assert curve(reader, "evaluation/accuracy") == {20: 0.5}


def test_flags_are_hyperparameters(written):
    reader = written("--model_params=learning_rate=0.1")
    content = reader.SummaryMetadata(hparams_reader.SESSION_START_INFO_TAG).plugin_data.content
    start = hparams_reader.parse_session_start_info_plugin_data(content)
    assert start.group_name == "digits" and start.start_time_secs == 1000.5
    assert start.hparams["minibatch_size"].number_value == 16
    assert start.hparams["num_workers"].number_value == 3
    assert start.hparams["model_params"].string_value == "learning_rate=0.1"
    assert start.hparams["shuffle"].HasField("bool_value")
    assert "job_name" not in start.hparams and "image_name" not in start.hparams


def test_the_graph_of_the_model_is_there(written):
    reader = written()
    (event,) = reader.Tensors("keras")
    described = json.loads(event.tensor_proto.string_val[0])
    assert described["config"]["layers"][-1]["config"]["name"] == "last"
    assert reader.SummaryMetadata("keras").plugin_data.plugin_name == "graph_keras_model"


class Own(keras.Model):
    def __init__(self, function: Callable[[float], float]) -> None:
        super().__init__()
        self.function = function


def test_a_model_without_a_graph_has_its_curves_all_the_same(written):
    reader = written(of=Own(lambda x: x))
    assert "keras" not in reader.Tags()["tensors"] and "train/loss" in reader.Tags()["scalars"]
