"""A checkpoint in object storage is there when its last object is, and never half."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edl_allreduce.core.protocol import Checkpointed
from edl_allreduce.errors import CheckpointError, StorageError
from edl_allreduce.storage.remote import store
from edl_allreduce.storage.url import place
from edl_allreduce.worker.checkpoint import format as on_disk
from edl_allreduce.worker.checkpoint.fit import load_for_init
from edl_allreduce.worker.checkpoint.format import JobIdentity
from edl_allreduce.worker.checkpoint.shelf import newest, shelf
from edl_allreduce.worker.checkpoint.writer import Checkpoints
from edl_allreduce.worker.loop.journal import Journal

pytestmark = pytest.mark.programs

COURSE = JobIdentity("digits", seed=0, shuffle=True, records=600, fingerprint="f" * 16)


class FakeTrainer:
    def __init__(self, value: float = 0.0) -> None:
        self.value = value

    def state(self) -> list[np.ndarray]:
        return [np.full((3, 2), self.value, "float32"), np.array(7, "int64")]

    def names(self) -> tuple[list[str], list[str]]:
        return ["dense/kernel"], ["sgd/iteration"]


def saved(bucket: str, *steps: int, keep: int = 0) -> list[Checkpointed]:
    told: list[Checkpointed] = []
    for step in steps:
        trainer = FakeTrainer(float(step))
        keeper = Checkpoints(bucket, trainer, COURSE, every=10, keep=keep, send=told.append)
        keeper.save(step, step * 48, Journal())
        keeper.flush()
    return told


def opened(bucket: str) -> Checkpoints:
    return Checkpoints(bucket, FakeTrainer(), COURSE, every=10, keep=0, send=lambda message: None)


def names(bucket: str) -> list[str]:
    return [path.name for path in shelf(bucket).versions()]


def test_what_was_written_is_read_again_and_old_ones_go(bucket):
    told = saved(bucket, 10, 20, 30, keep=2)
    assert [(one.path, one.error) for one in told] == [(f"{bucket}/version-{n}", "") for n in (10, 20, 30)]
    assert names(bucket) == ["version-30", "version-20"]
    loaded = opened(bucket).newest()
    assert loaded is not None and (loaded.contents.step, str(loaded.path)) == (30, f"{bucket}/version-30")
    assert (loaded.arrays[0] == 30).all()
    left = {found.parent.name for found in store().below(place(bucket))}
    assert left == {"version-30", "version-20"}, "nothing of the first is left"


def test_one_of_several_gives_its_model_to_another_job(bucket):
    saved(bucket, 10, 20)
    assert load_for_init(bucket, FakeTrainer()).contents.step == 20
    assert load_for_init(f"{bucket}/version-10", FakeTrainer()).contents.step == 10
    with pytest.raises(CheckpointError, match="expected a whole checkpoint"):
        load_for_init(f"{bucket}/elsewhere", FakeTrainer())


def test_a_copy_on_a_disk_is_a_checkpoint_there(bucket, tmp_path):
    saved(bucket, 10)
    copy = tmp_path / "version-10"
    copy.mkdir()
    for found in store().below(place(f"{bucket}/version-10")):
        store().download(found, copy / found.name)
    assert on_disk.read(copy).contents.step == 10


@pytest.mark.parametrize("part", ["state-", "checkpoint-", "done"])
def test_a_writer_that_dies_before_the_end_leaves_the_one_before(bucket, gate, part, monkeypatch):
    monkeypatch.setenv("EDL_STORAGE_SECONDS", "1")
    saved(bucket, 10)
    gate.fault = lambda method, path, number: (
        "503" if method == "PUT" and f"version-20/{part}" in path else ""
    )
    (told,) = saved(bucket, 20)
    assert gate.done["503"] > 0
    assert "could not be written for 1 s" in told.error
    gate.fault = lambda method, path, number: ""
    assert names(bucket) == ["version-10"]
    loaded = opened(bucket).newest()
    assert loaded is not None and loaded.contents.step == 10
    saved(bucket, 30)
    left = {found.parent.name for found in store().below(place(bucket))}
    assert left == {"version-10", "version-30"}, "what the dead writer left is cleared away"


def test_faults_on_the_way_give_whole_checkpoints(bucket, gate):
    faults = ["503", "", "cut", "", "slow", ""]
    gate.fault = lambda method, path, number: faults[number % len(faults)]
    assert [one.error for one in saved(bucket, 10, 20)] == ["", ""]
    loaded = opened(bucket).newest()
    assert loaded is not None and loaded.contents.step == 20
    assert min(gate.done[fault] for fault in ("503", "cut", "slow")) > 0


def test_a_damaged_part_is_noticed_and_the_one_before_is_used(bucket):
    saved(bucket, 10, 20)
    (state,) = [f for f in store().below(place(f"{bucket}/version-20")) if f.name.startswith("state-")]
    store().write(state.url, bytes(state.size))
    loaded, broken = newest(shelf(bucket))
    assert loaded is not None and loaded.contents.step == 10
    assert broken == [f"the checkpoint {bucket}/version-20 is corrupt: the checksum of state.bin is wrong"]


def test_a_damaged_one_of_the_same_step_is_written_again_and_the_good_ones_stay_till_then(bucket):
    saved(bucket, 10, 20)
    (state,) = [f for f in store().below(place(f"{bucket}/version-20")) if f.name.startswith("state-")]
    store().write(state.url, bytes(state.size))
    (told,) = saved(bucket, 20, keep=1)
    assert told.error == ""
    loaded, broken = newest(shelf(bucket))
    assert loaded is not None and loaded.contents.step == 20 and not broken
    assert len(store().below(place(f"{bucket}/version-20"))) == 3, "nothing is left of the damaged one"


def test_another_writer_of_the_same_step_does_no_harm(bucket, monkeypatch):
    """One that was believed dead and comes late writes parts of its own, never over those of another."""
    late = shelf(bucket)
    monkeypatch.setattr(late, "_is_whole", lambda path: False)
    saved(bucket, 10)
    snapshot = on_disk.Snapshot(
        10, 480, Journal(), [on_disk.Variable("dense/kernel", "float32", [3, 2])],
        [on_disk.Variable("sgd/iteration", "int64", [])], FakeTrainer(10.0).state(),
    )  # fmt: skip
    late.write(snapshot, COURSE)
    loaded, broken = newest(shelf(bucket))
    assert loaded is not None and not broken
    assert len(store().below(place(f"{bucket}/version-10"))) == 5


def test_storage_that_does_not_answer_is_no_empty_directory(bucket, gate, monkeypatch):
    """Otherwise the job would begin at step 0."""
    saved(bucket, 10)
    monkeypatch.setenv("EDL_STORAGE_SECONDS", "1")
    gate.fault = lambda method, path, number: "503"
    with pytest.raises(StorageError, match="could not be listed"):
        opened(bucket).newest()
    assert gate.done["503"] > 0


def test_the_copies_on_this_machine_go_again(bucket, tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    saved(bucket, 10)
    opened(bucket).newest()
    assert list(Path(scratch).iterdir()) == []
