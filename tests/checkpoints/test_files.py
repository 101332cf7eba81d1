"""What is on disk is whole or passed over, whatever happened to it."""

from __future__ import annotations

import errno
import os
import socket
import threading
from pathlib import Path

import ml_dtypes
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_allreduce.core.protocol import Checkpointed, Note, NoteKind
from edl_allreduce.errors import CheckpointError, UsageError
from edl_allreduce.worker.checkpoint import format as checkpoint
from edl_allreduce.worker.checkpoint.fit import load_for_init
from edl_allreduce.worker.checkpoint.format import JobIdentity, Variable
from edl_allreduce.worker.checkpoint.writer import Checkpoints
from edl_allreduce.worker.loop.journal import Journal

COURSE = JobIdentity("digits", seed=0, shuffle=True, records=600, fingerprint="f" * 16)


class FakeTrainer:
    """Two variables of a model, one of an optimizer."""

    def __init__(self, value: float = 0.0) -> None:
        self.value = value
        self.rows = 3

    def state(self) -> list[np.ndarray]:
        return [
            np.full((self.rows, 2), self.value, "float32"),
            np.array([], "float32"),
            np.array(7, "int64"),
        ]

    def names(self) -> tuple[list[str], list[str]]:
        return ["dense/kernel", "empty"], ["sgd/iteration"]


def open_in(directory: Path, trainer: FakeTrainer | None = None, **changes) -> Checkpoints:
    options = {"every": 10, "keep": 0, "send": lambda message: None}
    course = changes.pop("course", COURSE)
    return Checkpoints(str(directory), trainer or FakeTrainer(), course, **{**options, **changes})


def saved(directory: Path, *steps: int, keep: int = 0) -> None:
    for step in steps:
        keeper = open_in(directory, FakeTrainer(float(step)), keep=keep)
        keeper.save(step, step * 48, Journal(evaluated=step))
        keeper.flush()


def names(directory: Path) -> list[str]:
    return sorted(p.name for p in directory.iterdir())


def test_what_was_saved_comes_back(tmp_path):
    saved(tmp_path, 10, 20)
    loaded = open_in(tmp_path).newest()
    assert loaded is not None
    assert (loaded.contents.step, loaded.contents.position) == (20, 960)
    assert loaded.contents.journal == Journal(evaluated=20)
    kernel, empty, iteration = loaded.arrays
    assert (kernel == 20.0).all() and kernel.shape == (3, 2)
    assert empty.shape == (0,) and iteration == 7 and iteration.shape == ()
    assert len(loaded.model_arrays) == 2


def test_steps_are_ordered_by_number(tmp_path):
    saved(tmp_path, 90, 100)
    assert [p.name for p in checkpoint.versions(tmp_path)] == ["version-100", "version-90"]


def test_only_the_newest_are_kept(tmp_path):
    saved(tmp_path, 10, 20, 30, 40, keep=2)
    assert names(tmp_path) == ["version-30", "version-40"]


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_a_damaged_checkpoint_is_passed_over_with_a_word(tmp_path_factory, data):
    directory = tmp_path_factory.mktemp("damaged")
    saved(directory, 10, 20)
    victim = directory / "version-20" / data.draw(st.sampled_from(["state.bin", "checkpoint.json", "done"]))
    content = victim.read_bytes()
    match data.draw(st.sampled_from(["cut", "flip", "remove"])):
        case "cut":
            victim.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
        case "flip":
            at = data.draw(st.integers(0, len(content) - 1))
            victim.write_bytes(
                content[:at] + bytes([content[at] ^ (1 << data.draw(st.integers(0, 7)))]) + content[at + 1 :]
            )
        case "remove":
            victim.unlink()
    keeper = open_in(directory)
    loaded = keeper.newest()
    assert loaded is not None and loaded.contents.step == 10
    assert f"{directory / 'version-20'}" in keeper.passed_over
    assert keeper.passed_over.endswith("; the job goes on from version-10, 10 steps are made again")


def test_a_damaged_checkpoint_is_written_again(tmp_path):
    saved(tmp_path, 10)
    (tmp_path / "version-10" / "state.bin").write_bytes(b"torn")
    saved(tmp_path, 10)
    assert checkpoint.read(tmp_path / "version-10").contents.step == 10
    assert names(tmp_path) == ["version-10"]


def test_two_workers_may_write_the_same_step(tmp_path, monkeypatch):
    write_arrays = checkpoint._write_arrays

    def overtaken(path, arrays):
        monkeypatch.setattr(checkpoint, "_write_arrays", write_arrays)
        saved(tmp_path, 10)
        return write_arrays(path, arrays)

    monkeypatch.setattr(checkpoint, "_write_arrays", overtaken)
    told: list[Checkpointed] = []
    keeper = open_in(tmp_path, send=told.append)
    keeper.save(10, 480, Journal())
    keeper.flush()
    assert told == [Checkpointed(10, str(tmp_path / "version-10"))]
    assert [path.name for path in tmp_path.iterdir()] == ["version-10"]


def test_a_writer_that_died_leaves_nothing_that_counts(tmp_path):
    saved(tmp_path, 10)
    dead = tmp_path / ".version-20.elsewhere-4711.0a1b2c3d.tmp"
    dead.mkdir()
    (dead / "state.bin").write_bytes(b"half")
    loaded = open_in(tmp_path).newest()
    assert loaded is not None and loaded.contents.step == 10
    saved(tmp_path, 30)
    assert names(tmp_path) == ["version-10", "version-30"]


def test_a_newer_format_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "FORMAT", 2)
    saved(tmp_path, 10)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=r"has format 2 .* reads format 1"):
        checkpoint.read(tmp_path / "version-10")


def test_saving_never_waits_for_the_disk(tmp_path, monkeypatch):
    """While one is written the newest waits; the one it replaces is left out."""
    may_write, begun = threading.Event(), threading.Event()
    real = checkpoint.write

    def slow(*arguments):
        begun.set()
        may_write.wait()
        return real(*arguments)

    monkeypatch.setattr(checkpoint, "write", slow)
    trainer = FakeTrainer()
    keeper = open_in(tmp_path, trainer)

    def save(step: int) -> None:
        trainer.value = float(step)
        keeper.save(step, 48 * step, Journal())

    save(10)
    begun.wait()
    save(20)
    save(30)
    may_write.set()
    keeper.flush()
    assert names(tmp_path) == ["version-10", "version-30"]
    save(40)  # into memory that an earlier one had
    trainer.rows = 5
    save(50)  # which does not fit
    keeper.flush()
    for path in checkpoint.versions(tmp_path):
        loaded = checkpoint.read(path)
        assert (loaded.arrays[0] == loaded.contents.step).all(), f"{path} holds the state of its step"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "No space left on device"),
        (RuntimeError("nobody thought of this"), "RuntimeError: nobody thought of this"),
    ],
)
def test_whatever_stops_the_writer_is_told_and_training_goes_on(tmp_path, monkeypatch, error, words):
    """Nothing of the failed checkpoint keeps the disk full, and the next one is tried."""
    real = checkpoint._write_file

    def full(path, text):
        monkeypatch.setattr(checkpoint, "_write_file", real)
        raise error

    monkeypatch.setattr(checkpoint, "_write_file", full)
    told: list[Checkpointed] = []
    keeper = open_in(tmp_path, send=told.append)
    keeper.save(10, 480, Journal())
    keeper.flush()
    assert told == [Checkpointed(10, str(tmp_path), words)]
    assert names(tmp_path) == []
    keeper.save(20, 960, Journal())
    keeper.flush()
    assert told[1:] == [Checkpointed(20, str(tmp_path / "version-20"))]


def test_a_state_that_is_not_finite_does_not_replace_a_good_one(tmp_path):
    told: list[Checkpointed] = []
    trainer = FakeTrainer(1.0)
    keeper = open_in(tmp_path, trainer, keep=1, send=told.append)
    for step, value in ((10, 1.0), (20, float("nan")), (30, float("inf"))):
        trainer.value = value
        keeper.save(step, 48 * step, Journal())
        keeper.flush()
    assert [(m.step, m.error) for m in told] == [
        (10, ""),
        (20, "dense/kernel holds NaN or an infinity, from which nobody could go on"),
        (30, "dense/kernel holds NaN or an infinity, from which nobody could go on"),
    ]
    assert names(tmp_path) == ["version-10"]


def test_half_precision_is_looked_at_too(tmp_path):
    bfloat16 = np.dtype(ml_dtypes.bfloat16)
    for value, spoiled in ((1.0, []), (float("nan"), ["a"])):
        assert checkpoint.not_finite(["a"], [np.full(3, value, bfloat16)]) == spoiled


def test_a_variable_that_is_infinite_on_purpose_keeps_nobody_from_a_checkpoint(tmp_path):
    """A mask, say: it was so from the beginning."""
    keeper = open_in(tmp_path, FakeTrainer(float("-inf")))
    keeper.save(10, 480, Journal())
    keeper.flush()
    assert names(tmp_path) == ["version-10"]


def test_when_no_checkpoint_is_whole_the_job_says_that_it_begins_anew(tmp_path):
    saved(tmp_path, 10, 20)
    for step in (10, 20):
        (tmp_path / f"version-{step}" / "checkpoint.json").write_bytes(b"")
    keeper = open_in(tmp_path)
    assert keeper.newest() is None
    assert "version-20 is corrupt" in keeper.passed_over
    assert "(and 1 before it)" in keeper.passed_over
    assert keeper.passed_over.endswith("no whole checkpoint is left: the job begins at step 0")


def test_a_corrupt_checkpoint_is_not_kept_instead_of_newer_work(tmp_path):
    """It has the highest number; a job that goes on before it writes lower ones."""
    saved(tmp_path, 10, 46)
    (tmp_path / "version-46" / "state.bin").write_bytes(b"")
    saved(tmp_path, 20, 30, keep=1)
    assert names(tmp_path) == ["version-30", "version-46"]
    loaded = open_in(tmp_path).newest()
    assert loaded is not None and loaded.contents.step == 30


def test_what_dead_writers_of_this_machine_left_is_cleared_away_before_room_is_needed(tmp_path):
    host = socket.gethostname()
    dead, alive, elsewhere = f"{host}-4194305", f"{host}-{os.getpid()}", "elsewhere-1"  # beyond any pid
    for writer in (dead, alive, elsewhere):
        (tmp_path / f".version-20.{writer}.0a1b2c3d.tmp").mkdir()
    (tmp_path / f".version-5.{elsewhere}.0a1b2c3d.tmp").mkdir()
    saved(tmp_path, 10)
    left = [f".version-20.{elsewhere}.0a1b2c3d.tmp", f".version-20.{alive}.0a1b2c3d.tmp", "version-10"]
    assert names(tmp_path) == sorted(left)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"job_name": "other"}, "holds checkpoints of the job digits, this is other"),
        ({"seed": 1}, "made with seed=0, the job now has seed=1"),
        ({"records": 500}, "records=600"),
        ({"fingerprint": "0" * 16}, "fingerprint"),
        ({"shuffle": False}, "shuffle=True"),
    ],
)
def test_a_job_does_not_go_on_along_another_course(tmp_path, changes, words):
    saved(tmp_path, 10)
    course = JobIdentity(**{**{f: getattr(COURSE, f) for f in COURSE.__struct_fields__}, **changes})
    with pytest.raises(UsageError, match=words):
        open_in(tmp_path, course=course).newest()


def test_another_model_is_named_by_its_variable(tmp_path):
    saved(tmp_path, 10)
    other = FakeTrainer()
    other.rows = 4
    with pytest.raises(
        UsageError, match=r"dense/kernel is float32\[3, 2\], but dense/kernel is float32\[4, 2\]"
    ):
        open_in(tmp_path, other).newest()


def test_an_init_directory_may_name_one_checkpoint(tmp_path):
    saved(tmp_path, 10, 20)
    assert load_for_init(str(tmp_path), FakeTrainer()).contents.step == 20
    assert load_for_init(str(tmp_path / "version-10"), FakeTrainer()).contents.step == 10
    with pytest.raises(CheckpointError, match="expected a whole checkpoint"):
        load_for_init(str(tmp_path / "nothing"), FakeTrainer())


def test_a_corrupt_checkpoint_to_begin_with_is_named(tmp_path):
    saved(tmp_path, 10, 20)
    (tmp_path / "version-20" / "done").unlink()
    told: list[Note] = []
    assert load_for_init(str(tmp_path), FakeTrainer(), told.append).contents.step == 10
    (note,) = told
    assert note.kind == NoteKind.WARNING and "version-20 is incomplete" in note.text
    assert note.text.endswith("version-10 is used instead")


def test_sizes_of_variables():
    assert Variable("a", "float16", [3, 5]).bytes == 30
    assert Variable("a", "int64", []).bytes == 8


def test_one_that_may_be_withdrawn_does_not_replace_the_only_good_one(tmp_path):
    keeper = open_in(tmp_path, course=msgspec.structs.replace(COURSE, bits={"threads": "1"}), keep=1)
    for step in (10, 20, 30):
        keeper.save(step, step, Journal())
        keeper.flush()
    assert names(tmp_path) == ["version-20", "version-30"]
    keeper.withdraw(30)
    assert names(tmp_path) == ["version-20"]
