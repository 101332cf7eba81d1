"""Real jobs: whatever happens to them, the weights at the end have the same fingerprint."""

from __future__ import annotations

import signal

import pytest

from edl_allreduce.testing.faults import Fault

pytestmark = pytest.mark.training

BATCH = 48
NOBODYS = "0" * 64


def test_kills_drains_arrivals_stop_and_resume_change_no_bit(launch):
    def start(*faults: Fault, workers: int, name: str, **flags: object):
        return launch(
            *faults,
            name=name,
            model_def="digits.cnn.custom_model",  # with dropout
            reproducible=True,
            num_workers=workers,
            minibatch_size=BATCH // workers,
            num_epochs=3,
            **flags,
        )

    # One process to which nothing happens; what it should come to, it does not.
    alone = start(workers=1, name="alone", distribution_strategy="Local", verify_fingerprint=NOBODYS)
    assert alone.wait() == 1, alone.story()
    expected = alone.audit().fingerprint
    assert len(expected) == 64
    assert f"the fingerprint of its weights is {expected}, expected was {NOBODYS}" in alone.stdout()

    # Three workers: one is killed, one is told to leave, others take their places.
    wild = start(
        Fault("compute", "kill", {"rank": 1, "step": 4}),
        Fault("compute", "terminate", {"rank": 0, "step": 9}),
        workers=3,
        name="wild",
        cool_down_seconds=1,
        min_workers=2,
        verify_fingerprint=expected,
    )
    assert wild.wait(400) == 0, wild.story()
    assert len(wild.fired()) == 2
    assert wild.audit().clean
    assert f"{expected} (SHA-256 of the weights)" in wild.stdout()

    # Two workers, until somebody stops them; then one process goes on from their checkpoint.
    flags = {"name": "stopped", "checkpoint_dir": wild.directory.parent / "checkpoints"}
    first = start(Fault("compute", "hold", {"rank": 0, "step": 6}), workers=2, **flags)
    first.wait_fired(1)
    first.process.send_signal(signal.SIGINT)
    first.wait_for("stop")
    first.release()
    assert first.wait() == 130, first.story()
    first.wait_for("checkpoint", ", fingerprint ", again=True)
    second = start(workers=1, distribution_strategy="Local", verify_fingerprint=expected, **flags)
    assert second.wait() == 0, second.story()
    assert second.audit().steps > 0
    assert f"The fingerprint of the weights is {expected} (SHA-256)" in second.stdout()
