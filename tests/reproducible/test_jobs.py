"""Real jobs: whatever happens to them, the weights at the end have the same fingerprint."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from edl_allreduce.testing.faults import Fault
from tests.reproducible.schedules import BATCH, EPOCHS, STEPS, VIRTUAL, Life, live, lives_of

pytestmark = pytest.mark.training

NOBODYS = "0" * 64
SEEDS = range(24)


@pytest.fixture
def start(launch):
    """A reproducible job of this folder's zoo; the same one may be started again after it was stopped."""

    def begin(*faults: Fault, model: str, name: str, **flags: object):
        return launch(
            *faults,
            name=name,
            model_zoo=Path(__file__).with_name("zoo"),
            model_def=f"{model}.{'CustomModel' if model == 'subclassed' else 'custom_model'}",
            reproducible=True,
            virtual_workers=VIRTUAL,
            num_epochs=EPOCHS,
            **flags,
        )

    return begin


@pytest.fixture
def undisturbed(start) -> Callable[[str], str]:
    """The fingerprint that one process comes to, to which nothing happens."""

    def fingerprint(model: str) -> str:
        # What it should come to, it does not.
        alone = start(
            model=model, name="alone", distribution_strategy="Local", minibatch_size=BATCH,
            num_workers=1, verify_fingerprint=NOBODYS,
        )  # fmt: skip
        assert alone.wait() == 1, alone.story()
        found = alone.audit().fingerprint
        assert len(found) == 64
        assert f"the fingerprint of its weights is {found}, expected was {NOBODYS}" in alone.stdout()
        return found

    return fingerprint


def live_all(start, directory: Path, model: str, lives: list[Life], expected: str) -> None:
    for life in lives:
        last = life is lives[-1]
        shutil.rmtree(directory / "wild" / "faults", ignore_errors=True)
        flags = {"verify_fingerprint": expected} if last else {}
        job = live(life, start, model=model, name="wild", checkpoint_dir=directory / "checkpoints", **flags)
        for fault in job.fired():
            assert 0 < fault["step"] < STEPS - 1, fault
    assert job.audit().clean, f"{job.audit()}\n{job.story()}"
    assert f"{expected} (SHA-256 of the weights)" in job.stdout()


def test_kills_drains_arrivals_stop_and_resume_change_no_bit(start, undisturbed, tmp_path):
    kill = Fault("compute", "kill", {"rank": 1, "step": 4})
    drain = Fault("compute", "terminate", {"rank": 0, "step": 18})
    lives = [Life(3, (kill,), 9, "stop", 0), Life(2, (drain,), 14, "scale", 3)]
    live_all(start, tmp_path, "cnn", lives, undisturbed("cnn"))


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_lives_change_no_bit(start, undisturbed, tmp_path, seed):
    model, lives = lives_of(seed)
    print(f"seed {seed}: {model}; {'; then '.join(map(str, lives))}")
    live_all(start, tmp_path, model, lives, undisturbed(model))


def test_a_worker_whose_memory_rots_is_evicted_and_the_weights_are_right(start, undisturbed):
    """Rank 0: the one whose state others would take, and who writes the checkpoints."""
    rot = Fault("compute", "rot", {"rank": 0, "step": 7})
    job = start(
        rot, model="mlp", name="rotten", num_workers=3, minibatch_size=BATCH // 3, min_workers=2,
        verify_fingerprint=undisturbed("mlp"),
    )  # fmt: skip
    assert job.wait(400) == 0, job.story()
    assert [fault["step"] for fault in job.fired()] == [7]
    told = job.wait_for("evict", again=True).text
    assert told.startswith("worker 0 holds other weights than the rest after 7 steps"), told
    assert job.audit().clean


@pytest.mark.soak
@pytest.mark.parametrize("wrong", [0, 1])
def test_of_two_workers_the_steps_that_are_made_again_show_which_is_wrong(
    start, undisturbed, tmp_path, wrong
):
    """It rots when the checkpoint of that step may be written already, which must not stay."""
    rot = Fault("compute", "rot", {"rank": wrong, "step": 6})
    job = start(
        rot, model="mlp", name="rotten", num_workers=2, minibatch_size=BATCH // 2, min_workers=2,
        checkpoint_dir=tmp_path / "checkpoints", checkpoint_steps=3, verify_fingerprint=undisturbed("mlp"),
    )  # fmt: skip
    assert job.wait(400) == 0, job.story()
    assert [fault["step"] for fault in job.fired()] == [6]
    doubt, found = (event.text for event in job.events() if event.kind == "warning")
    assert doubt.startswith("workers 0, 1 hold different weights after 6 steps"), doubt
    assert f"worker {wrong} (" in found and f"worker {1 - wrong} (" not in found, found
    assert "after 3 steps" in job.wait_for("resume", again=True).text
    assert job.audit().clean
