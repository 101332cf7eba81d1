"""Jobs whose disk fails and whose data is damaged: what the terminal says, and what the exit code."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edl_allreduce.data.example import encode_example
from edl_allreduce.data.tfrecord import TFRecordWriter

pytestmark = [pytest.mark.training, pytest.mark.timeout(900)]

SMALL_FILES = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, ({bytes}, {bytes}))  # every process of the job inherits it
from edl_allreduce.cli.main import main
sys.exit(main(["train", *sys.argv[1:]]))
"""
FEED = """
import keras
import tensorflow as tf


def custom_model():
    return keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])


def loss(labels, predictions):
    return keras.losses.mean_squared_error(labels, predictions)


def optimizer():
    return keras.optimizers.SGD(0.1)


def feed(dataset, mode, metadata):
    def parse(record):
        features = {name: tf.io.FixedLenFeature([size], tf.float32) for name, size in (("x", 2), ("y", 1))}
        example = tf.io.parse_single_example(record, features)
        return example["x"], example["y"]

    return dataset.map(parse)
"""


def test_a_job_whose_checkpoints_do_not_fit_has_its_model_and_is_no_success(launch, tmp_path):
    program = ("-c", SMALL_FILES.format(bytes=120_000))  # the model has room, model and optimizer have not
    job = launch(program=program, num_workers=1, checkpoint_dir=tmp_path / "ckpt", checkpoint_steps=30)
    assert job.wait(400) == 1, job.story()
    told = [event.text for event in job.events() if event.kind == "warning"]
    assert told and all("could NOT be written" in text and "File too large" in text for text in told)
    where = f"no checkpoint could be written to {tmp_path / 'ckpt'}: File too large"
    assert re.search(rf"^Failed: trained for \d+ steps, but .*{where}$", job.stdout(), re.MULTILINE)
    assert f"WARNING [master] warning: {told[0]}" in job.stdout()
    assert (job.output / "model.keras").exists() and f"in {job.output / 'model.keras'}" in job.stdout()
    assert not list((tmp_path / "ckpt").iterdir()), "what failed does not keep the disk full"


def test_a_model_that_does_not_fit_is_the_reason_that_is_given(launch, tmp_path):
    program = ("-c", SMALL_FILES.format(bytes=60_000))
    job = launch(program=program, num_workers=1, distribution_strategy="Local", max_step=5)
    assert job.wait(400) == 1, job.story()
    why = f"the model could not be written to {job.output}: File too large"
    assert f"Failed: trained for 5 steps, but {why}" in job.stdout()
    assert not list(job.output.iterdir())


@pytest.fixture
def damaged(tmp_path: Path) -> dict[str, object]:
    """200 records of which one is flipped, and a file that is lost from its 50th record of 100 on."""
    (tmp_path / "data").mkdir()
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "mine.py").write_text(FEED)
    for name, count in (("a.tfrecord", 200), ("b.tfrecord", 100)):
        with TFRecordWriter(tmp_path / "data" / name) as writer:
            for at in range(count):
                x = np.array([at, 1], np.float32) / 200
                writer.write(encode_example({"x": x, "y": x[:1]}))
        content = bytearray((tmp_path / "data" / name).read_bytes())
        size = struct.unpack_from("<Q", content)[0] + 16
        content[{"a.tfrecord": 17 * size + 30, "b.tfrecord": 50 * size}[name]] ^= 1
        (tmp_path / "data" / name).write_bytes(content)
    return {
        "model_zoo": tmp_path / "zoo",
        "model_def": "mine.custom_model",
        "training_data": tmp_path / "data",
        "num_workers": 2,
        "num_epochs": 4,
    }


def test_bad_and_lost_records_are_told_and_each_counts_once(launch, damaged):
    job = launch(**damaged, max_bad_records=2)
    assert job.wait(400) == 0, job.story()
    told = [event.text for event in job.events() if event.kind == "warning"]
    torn, *met = told
    assert "about 49 more records are lost" in torn and "index" not in torn, "known before any record is met"
    flipped, lost = sorted(met)
    assert "index 17)" in flipped and "index 250)" in lost and "about 49 more records are lost" in lost
    assert "; 2 bad records left out and about 49 more lost with them" in job.stdout()
    verdict = job.audit()
    assert verdict.clean and (verdict.epochs, verdict.bad_records, verdict.lost_records) == (4, 2, 49)


def test_one_bad_record_too_many_ends_the_job_whoever_met_which(launch, damaged):
    job = launch(**damaged, max_bad_records=1)
    assert job.wait(400) == 1, job.story()
    assert "Failed: 2 bad records so far, 1 allowed (--max_bad_records)" in job.stdout()
    assert "could not begin" not in job.stdout()


def test_ranks_without_a_master_count_bad_records_together(damaged):
    """Shuffled, each of the two may have met one: neither alone has too many."""
    flags = [f"--{key}={value}" for key, value in damaged.items() if key != "num_workers"]
    programs = Path(sys.executable).parent
    words = [programs / "horovodrun", "-np", "2", sys.executable, "-m", "edl_allreduce.worker.main", *flags]
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    done = subprocess.run(
        [*words, "--max_bad_records=1"], capture_output=True, text=True, timeout=240, env=environment
    )
    assert done.returncode != 0
    assert "2 bad records so far, 1 allowed (--max_bad_records). Check the data" in done.stdout, done.stderr


def test_a_bad_record_that_is_not_allowed_is_named_with_the_cure(launch, damaged, tmp_path):
    (tmp_path / "data" / "b.tfrecord").unlink()
    job = launch(**{**damaged, "num_workers": 1})
    assert job.wait(400) == 1, job.story()
    last = job.stdout().strip().splitlines()[-1]
    assert "a.tfrecord: record 17 at offset" in last and "--max_bad_records=N" in last
    assert "worker 0 could not go on" in job.stdout() and "could not begin" not in job.stdout()
