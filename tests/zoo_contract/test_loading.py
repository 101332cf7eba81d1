"""What a model file may look like, and what is said when it does not fit."""

# ruff: noqa: E501  messages are matched as a whole

from __future__ import annotations

import sys
import textwrap

import pytest

from edl_allreduce.errors import ModelError
from edl_allreduce.spec import JobSpec
from edl_allreduce.worker.keras.zoo import Mode, load_definition

GOOD = """
def custom_model(): return "model"
def loss(labels, predictions): return "loss"
def optimizer(lr=0.1): return lr
def feed(dataset, mode, metadata): return (dataset, mode, metadata)
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Write model files into a zoo of their own and load one; other flags as given."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def load_files(source: str = GOOD, model_def: str = "", more: dict[str, str] | None = None, **flags):
        name = f"m{abs(hash((str(tmp_path), source)))}"  # a module name of its own
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        for path, text in (more or {}).items():
            (tmp_path / path).parent.mkdir(exist_ok=True, parents=True)
            (tmp_path / path).write_text(textwrap.dedent(text))
        return load_definition(
            JobSpec(
                job_name="j", model_zoo=str(tmp_path), model_def=model_def or f"{name}.custom_model", **flags
            )
        )

    return load_files


def test_the_required_four_are_enough(load):
    found = load()
    assert found.model() == "model"
    assert found.feed(1, Mode.TRAINING, 3) == (1, "training", 3)
    assert (found.eval_metrics, found.callbacks, found.data_reader, found.outputs_processor) == (None,) * 4


def test_optional_parts_are_found(load):
    found = load(
        GOOD
        + """
def eval_metrics_fn(): return {"a": 1}
def callbacks(): return [1]
def custom_data_reader(data_origin, records_per_task=None, **kwargs): return data_origin
class PredictionOutputsProcessor:
    def process(self, predictions, worker_id): pass
"""
    )
    assert found.eval_metrics is not None and found.eval_metrics() == {"a": 1}
    assert found.callbacks is not None and found.callbacks() == [1]
    assert found.data_reader is not None and found.data_reader("here") == "here"
    assert found.outputs_processor is not None


@pytest.mark.parametrize("arguments", ["dataset, mode", "dataset, mode, metadata"])
def test_older_files_feed_with_dataset_fn(load, arguments):
    without_feed = GOOD[: GOOD.index("def feed")]
    found = load(f"{without_feed}\ndef dataset_fn({arguments}): return (dataset, mode)\n")
    assert found.feed(1, Mode.PREDICTION, 3) == (1, "prediction")


def test_names_may_be_chosen_and_lie_in_other_files(load):
    found = load(
        GOOD.replace("def loss", "def my_loss"),
        more={"parts/steps.py": "def fast(): return 'fast'"},
        loss="my_loss",
        optimizer="parts.steps.fast",
    )
    assert found.loss(1, 2) == "loss"
    assert found.optimizer() == "fast"


def test_a_class_is_a_model_too(load):
    source = GOOD + "class Net:\n    units = 3\n"
    assert load(model_def="net.Net", more={"net.py": source}).model().units == 3


def test_model_params_are_keyword_arguments(load):
    source = GOOD.replace(
        "def custom_model(): return",
        "def custom_model(units, name='x', rates=()): return units, name, rates;",
    )
    found = load(source, model_params="units=12; name=wide; rates=(0.5, 2)")
    assert found.model() == (12, "wide", (0.5, 2))


@pytest.mark.tensorflow
def test_files_written_for_elasticdl_find_its_names(load):
    found = load(
        """
from elasticdl.python.common.constants import Mode
from elasticdl.python.common.log_utils import default_logger as logger
from elasticdl.python.elasticdl.callbacks import LearningRateScheduler
"""
        + GOOD
        + """
def feed(dataset, mode, metadata):
    logger.debug("feeding")
    return mode == Mode.PREDICTION
def callbacks(): return [LearningRateScheduler(lambda batch: 0.1)]
"""
    )
    assert found.feed(None, Mode.PREDICTION, None) is True
    assert found.feed(None, Mode.TRAINING, None) is False


@pytest.mark.parametrize(
    ("source", "flags", "words"),
    [
        (GOOD.replace("def loss", "def cost"), {}, r"m\d+\.py has no function loss \(--loss\); expected loss\(labels, predictions\)\. It offers: .*cost"),
        (GOOD.replace("loss(labels, predictions)", "loss(labels)"), {}, r"loss\(labels\) does not fit --loss; it is called as loss\(labels, predictions\)"),
        (GOOD.replace("optimizer(lr=0.1)", "optimizer(lr)"), {}, r"optimizer\(lr\) does not fit"),
        (GOOD.replace("feed(dataset, mode, metadata)", "feed(dataset)"), {}, r"feed\(dataset\) does not fit --feed; it is called as feed\(dataset, mode, metadata\)"),
        (GOOD, {"eval_metrics_fn": "scores"}, r"has no function scores \(--eval_metrics_fn\)"),
        (GOOD.replace("custom_model()", "custom_model(units)"), {}, r"custom_model\(units\) does not fit: it is called without arguments"),
        (GOOD, {"model_params": "depth=3"}, r"custom_model\(\) does not fit: it is called with --model_params='depth=3'"),
        (GOOD + "callbacks = 3\n", {}, r"has no function callbacks"),
        ("import nowhere_at_all", {}, r"cannot be imported: ModuleNotFoundError"),
        ("from elasticdl.python.ps import x", {}, r"elasticdl\.python\.ps is ElasticDL's own"),
        (GOOD, {"model_def": "nothing.custom_model"}, r"nothing\.py, which does not exist; .* holds m\d+\.py"),
        (GOOD, {"model_def": "away.net.custom_model", "more": {"kept/net.py": GOOD}}, r"below --model_zoo, here kept\.net\.function"),
        (GOOD, {"loss": "elsewhere.loss"}, r"--loss names .*elsewhere\.py, which does not exist"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named_with_file_function_and_signature(load, source, flags, words):
    with pytest.raises(ModelError, match=words):
        load(source, **flags)


def test_every_flag_of_the_contract_is_a_flag_of_the_job():
    from edl_allreduce.worker.keras.zoo import CONTRACT

    assert set(CONTRACT) <= set(JobSpec.__dataclass_fields__)


def test_a_neighbour_may_be_imported_from_above_the_zoo(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", list(sys.path))
    zoo = tmp_path / "model_zoo_of_old"
    (zoo / "a").mkdir(parents=True)
    (zoo / "a" / "shared_part.py").write_text("NAME = 'shared'\n")
    (zoo / "a" / "net_of_old.py").write_text("from model_zoo_of_old.a.shared_part import NAME\n" + GOOD)
    load_definition(JobSpec(job_name="j", model_zoo=str(zoo), model_def="a.net_of_old.custom_model"))
    assert sys.modules["model_zoo_of_old.a.shared_part"].NAME == "shared"


def test_a_directory_of_the_zoo_hides_no_installed_package(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", list(sys.path))
    (tmp_path / "tomllib").mkdir()  # of the standard library, and not imported yet by what a model file needs
    (tmp_path / "tomllib" / "__init__.py").write_text("raise AssertionError('this one must not be found')\n")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "net_with_toml.py").write_text("import tomllib\ntomllib.loads\n" + GOOD)
    monkeypatch.delitem(sys.modules, "tomllib", raising=False)
    load_definition(JobSpec(job_name="j", model_zoo=str(tmp_path), model_def="b.net_with_toml.custom_model"))


@pytest.mark.parametrize(
    ("line", "cure"),
    [
        (
            "from elasticdl.python.data.reader.csv_reader import CSVDataReader",
            "derives from AbstractDataReader",
        ),
        ("from elasticdl.python.elasticdl import feature_column", "keras.layers.Embedding"),
        ("from elasticai_api.common.data_shard_service import build_data_shard_service", "elastic.fit"),
        ("import elasticdl.python.worker.worker", "docs/models.md says what to use instead"),
    ],
)
def test_what_is_not_offered_is_named_with_what_to_use_instead(load, line, cure):
    with pytest.raises(ModelError, match="cannot be imported") as raised:
        load(f"{line}\n{GOOD}")
    assert cure in str(raised.value)


def test_constants_of_elasticdl_that_files_import(load):
    load("from elasticdl.python.common.constants import JobType, MaxComputeConfig, ReaderType\n" + GOOD)
