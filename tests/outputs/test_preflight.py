"""What a command can know before TensorFlow is imported, it says at once; the rest is left to the workers."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import numpy as np
import pytest

from edl_allreduce.core.audit import Manifest
from edl_allreduce.errors import UsageError
from edl_allreduce.spec import parse_job
from edl_allreduce.worker import disk
from edl_allreduce.worker.loop.diary import write_manifest
from edl_allreduce.worker.start.preflight import check_local_job

MODEL = """
def custom_model(): ...
def loss(labels, predictions): ...
def optimizer(): ...
def feed(dataset, mode, metadata): ...
"""
PLACES = ("output", "checkpoint_dir", "audit_dir", "tensorboard_log_dir", "job_dir")


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Check a job that would begin, but for what the test changes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "mine.py").write_text(MODEL)
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "x.npy", np.zeros(3))
    (tmp_path / "file").touch()

    def check(command: str = "train", **flags: object) -> None:
        data = {"train": "training_data", "evaluate": "validation_data", "predict": "prediction_data"}
        settings = {
            "job_name": "mine",
            "model_zoo": "zoo",
            "model_def": "mine.custom_model",
            data[command]: "data",
            **({} if command == "train" else {"checkpoint_dir_for_init": "ckpt"}),
            **flags,
        }
        check_local_job(parse_job(command, [f"--{k}={v}" for k, v in settings.items()]).spec)

    return check


def test_a_job_that_can_begin_is_let_through_and_leaves_no_trial_behind(job, tmp_path):
    job(**{place: f"made/{place}" for place in PLACES}, log_file_path="logs/job.log")
    made = sorted(path.name for path in (tmp_path / "made").iterdir())
    assert made == sorted(PLACES)
    assert all(not list((tmp_path / "made" / place).iterdir()) for place in PLACES)


@pytest.mark.parametrize("strategy", ["AllreduceStrategy", "Local"])
@pytest.mark.parametrize("place", PLACES)
def test_a_file_where_a_directory_is_needed_is_refused(job, place, strategy):
    if place == "job_dir" and strategy == "Local":
        job(job_dir="file", distribution_strategy=strategy)  # one process keeps no job directory
        return
    with pytest.raises(UsageError, match=rf"--{place}=file cannot be written: File exists; .* move the file"):
        job(**{place: "file"}, distribution_strategy=strategy)
    with pytest.raises(UsageError, match=rf"--{place}=file/x cannot be written: Not a directory"):
        job(**{place: "file/x"}, distribution_strategy=strategy)


@pytest.mark.parametrize(
    ("code", "cure"),
    [
        (errno.ENOSPC, "No space left on device; free some space"),
        (errno.EROFS, "Read-only file system; choose a directory on a disk that can be written"),
        (errno.EACCES, "Permission denied; choose a directory that you may write to"),
        (errno.EIO, "Input/output error; choose another place"),
    ],
)
def test_a_disk_that_refuses_is_named_with_a_cure(job, monkeypatch, tmp_path, code, cure):
    def refuse(descriptor, data):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(disk.os, "write", refuse)
    with pytest.raises(UsageError, match=f"--output=out cannot be written: {cure}"):
        job(output="out")
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_directory_without_rights_is_refused(job, tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(UsageError, match="--output=closed/out cannot be written: Permission denied"):
        job(output="closed/out")


def test_the_log_file_is_tried(job):
    with pytest.raises(UsageError, match="--log_file_path=data cannot be written: Is a directory"):
        job(log_file_path="data")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"training_data": "nope"}, "--training_data: nope: no such file or directory"),
        ({"validation_data": "nope"}, "--validation_data: nope: no such file"),
        ({"training_data": "zoo/none"}, "--training_data: zoo/none: no such file"),
        ({"data_reader_params": "reader_type=tfrecrod"}, "reader_type='tfrecrod' is not known"),
        ({"data_reader_params": "seperator=;"}, "seperator is not known. Did you mean sep?"),
        ({"data_reader_params": "label_col=class"}, "label_col is not known.*Known: reader_type, columns, h"),
        ({"checkpoint_dir_for_init": "nope"}, "expected a whole checkpoint .* found no directory"),
        ({"checkpoint_dir_for_init": "data"}, "expected a whole checkpoint .* found x.npy"),
        ({"model_zoo": "nozoo"}, "--model_zoo=.*/nozoo: there is no such directory"),
        ({"model_def": "other.custom_model"}, "other.py, which does not exist; .*/zoo holds mine.py"),
        ({"model_def": "mine.custom_modle"}, r"custom_modle \(--model_def\).*Did you mean custom_model\?"),
        ({"loss": "my_loss"}, r"mine.py has no function my_loss \(--loss\); expected loss\(labels, predic"),
        ({"loss": "losses.mine"}, "--loss names .*/zoo/losses.py, which does not exist"),
        ({"callbacks": "my_callbacks"}, r"has no function my_callbacks \(--callbacks\)"),
    ],
)
def test_what_is_missing_is_named(job, flags, words):
    with pytest.raises(UsageError, match=words):
        job(**flags)


def test_an_empty_directory_is_no_data(job, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="--training_data: empty: no data files there"):
        job(training_data="empty")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def custom_model(:\n    pass\n", r"mine.py, line 1: invalid syntax:\n    def custom_model\(:"),
        (f"{MODEL}\nreturn 1\n", r"mine.py, line \d+: 'return' outside function"),
        ("x = '\0'\n", "mine.py"),
    ],
)
def test_a_file_that_is_no_python_is_named_with_its_line(job, tmp_path, text, words):
    (tmp_path / "zoo" / "mine.py").write_text(text)
    with pytest.raises(UsageError, match=words):
        job()


@pytest.mark.parametrize(
    "text",
    [
        "from mine_too import *",
        "from mine_too import loss, optimizer, feed, custom_model",
        "custom_model = loss = optimizer = feed = print",
        "custom_model, (loss, optimizer), *feed = 1, (2, 3), 4",
        f"if True:\n  {MODEL.strip().replace(chr(10), chr(10) + '  ')}",
        f"try:\n  {MODEL.strip().replace(chr(10), chr(10) + '  ')}\nexcept ImportError:\n  pass",
        "for name in ('custom_model', 'loss', 'optimizer', 'feed'):\n  globals()[name] = print",
        "def __getattr__(name): ...",
        "def make():\n  global custom_model, loss, optimizer, feed\n  custom_model = loss = feed = print",
        MODEL.replace("def feed(dataset, mode, metadata)", "def dataset_fn(dataset, mode)"),
        MODEL.replace("def custom_model()", "class custom_model"),
    ],
)
def test_where_a_file_defines_its_names_in_another_way_the_worker_decides(job, tmp_path, text):
    (tmp_path / "zoo" / "mine.py").write_text(text)
    job()


def test_a_reader_of_the_model_file_may_read_anything(job, tmp_path):
    (tmp_path / "zoo" / "mine.py").write_text(
        f"{MODEL}\ndef custom_data_reader(data_origin, **kwargs): ...\n"
    )
    job(training_data="a_table_somewhere", data_reader_params="label_col=class")


def test_a_job_with_its_own_loop_needs_no_model_file(job):
    job(model_def="", job_command="python train.py", training_data="")


def test_predictions_of_another_run_are_refused_or_knowingly_replaced(job, tmp_path):
    (tmp_path / "ckpt" / "version-3").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    job("predict", output="out")
    (tmp_path / "out" / "predictions-000000.npy").touch()
    with pytest.raises(UsageError, match=r"--output=out holds the predictions of another run.*--overwrite"):
        job("predict", output="out")
    job("predict", output="out", overwrite=True)


def test_an_audit_belongs_to_one_job(job):
    write_manifest("audit", Manifest(3, job_name="other"))
    with pytest.raises(UsageError, match="--audit_dir=audit holds the audit of the job other, this is mine"):
        job(audit_dir="audit")
    write_manifest("audit", Manifest(3, job_name="mine"))
    job(audit_dir="audit")


@pytest.mark.parametrize(
    ("program", "environment"),
    [
        (["edl_allreduce.cli", "train"], {}),
        (["edl_allreduce.cli", "train", "--distribution_strategy=Local"], {}),
        (["edl_allreduce.worker.main"], {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1"}),
    ],
)
@pytest.mark.programs
def test_whoever_runs_the_job_says_it_before_anything_begins(job, program, environment):
    job()
    flags = ["--job_name=mine", "--model_zoo=zoo", "--model_def=mine.custom_model", "--training_data=data"]
    done = subprocess.run(
        [sys.executable, "-m", *program, *flags, "--output=file"],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert done.returncode == 2
    assert "--output=file cannot be written: File exists" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.programs
def test_nothing_heavy_is_imported_for_that():
    heavy = ("tensorflow", "keras", "grpc")
    code = (
        f"import sys, edl_allreduce.worker.start.preflight; print([m for m in {heavy} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.programs
@pytest.mark.parametrize("module", ["main", "start.local"])
def test_no_library_starts_threads_before_a_worker_has_blocked_its_signals(module):
    """A thread that does not block SIGTERM gets it, and the worker dies instead of leaving in order."""
    code = f"import sys, edl_allreduce.worker.{module}; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_evaluation_without_data_is_noticed():
    words = ["--job_name=a", "--model_def=a.b", "--training_data=d", "--evaluation_steps=10"]
    assert "--evaluation_steps has no effect" in " ".join(parse_job("train", words).notices)
    assert not parse_job("train", [*words, "--validation_data=v"]).notices
