"""What is on disk is whole or passed over, whatever happened to it."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_allreduce.errors import CheckpointError, UsageError
from edl_allreduce.worker import checkpoint
from edl_allreduce.worker.checkpoint import Checkpoints, Course, Variable
from edl_allreduce.worker.journal import Journal

COURSE = Course("digits", seed=0, shuffle=True, records=600, fingerprint="f" * 16)


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
    options = {"every": 10, "keep": 0, "tell": lambda kind, text: None}
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
    words: list[str] = []
    loaded = checkpoint.newest(directory, words.append)
    assert loaded is not None and loaded.contents.step == 10
    assert len(words) == 1 and "version-20" in words[0] and "the one before it is used" in words[0]


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
        monkeypatch.setattr(checkpoint, "_writer", lambda: "quicker")
        saved(tmp_path, 10)
        return write_arrays(path, arrays)

    monkeypatch.setattr(checkpoint, "_write_arrays", overtaken)
    told: list[tuple[str, str]] = []
    keeper = open_in(tmp_path, tell=lambda kind, text: told.append((kind, text)))
    keeper.save(10, 480, Journal())
    keeper.flush()
    assert told == [("checkpoint", f"step 10 is in {tmp_path / 'version-10'}")]
    assert [path.name for path in tmp_path.iterdir()] == ["version-10"]


def test_a_writer_that_died_leaves_nothing_that_counts(tmp_path):
    saved(tmp_path, 10)
    dead = tmp_path / ".version-20.4711.part"
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


def test_a_full_disk_is_told_and_training_goes_on(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write", full)
    told: list[tuple[str, str]] = []
    keeper = open_in(tmp_path, tell=lambda kind, text: told.append((kind, text)))
    keeper.save(10, 480, Journal())
    keeper.flush()
    assert told == [("checkpoint", "step 10 could NOT be written: [Errno 28] No space left on device")]


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
    course = Course(**{**{f: getattr(COURSE, f) for f in COURSE.__struct_fields__}, **changes})
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
    assert checkpoint.load_for_init(str(tmp_path), FakeTrainer()).contents.step == 20
    assert checkpoint.load_for_init(str(tmp_path / "version-10"), FakeTrainer()).contents.step == 10
    with pytest.raises(CheckpointError, match="expected a whole checkpoint"):
        checkpoint.load_for_init(str(tmp_path / "nothing"), FakeTrainer())


def test_sizes_of_variables():
    assert Variable("a", "float16", [3, 5]).bytes == 30
    assert Variable("a", "int64", []).bytes == 8
