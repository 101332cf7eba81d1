"""A job that has everything in object storage keeps every promise while that fails."""

from __future__ import annotations

import numpy as np
import pytest

from edl_allreduce.storage.remote import store
from edl_allreduce.storage.url import place
from edl_allreduce.testing.faults import Fault
from edl_allreduce.worker.loop.diary import audit
from tests.conftest import EPOCHS, GLOBAL_BATCH, STEPS

pytestmark = [pytest.mark.training, pytest.mark.timeout(900)]


def test_killed_server_and_killed_job_lose_nothing(
    launch, undisturbed, weights, digits_data, bucket, gate, server
):
    for file in digits_data.glob("*.npy"):
        store().upload(file, place(f"{bucket}/data/{file.name}"))
    faults = ["", "503", "", "slow", "cut", "", ""]
    gate.fault = lambda method, path, number: faults[number % len(faults)]
    flags = {
        "training_data": f"{bucket}/data",
        "checkpoint_dir": f"{bucket}/checkpoints",
        "checkpoint_steps": 8,
        "output": f"{bucket}/model",
        "audit_dir": f"{bucket}/audit",
        "minibatch_size": GLOBAL_BATCH // 2,
        "num_epochs": EPOCHS,
        "num_workers": 2,
    }
    job = launch(Fault("compute", "hold", {"step": 30}, repeat=True), **flags)
    job.wait_for("checkpoint", "step 24 is in", timeout=250)
    job.wait_fired(2, timeout=250)
    job.end()
    server.kill()
    server.start()

    again = launch(**flags)
    assert "version-24, after 24 steps" in again.wait_for("resume", timeout=250).text
    assert again.wait(400) == 0, again.story()
    for found in store().below(place(f"{bucket}/model")):
        target = again.output / str(found.url).removeprefix(f"{bucket}/model/")
        target.parent.mkdir(parents=True, exist_ok=True)
        store().download(found, target)
    for expected, got in zip(undisturbed, weights(again.output), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)
    verdict = audit(f"{bucket}/audit")
    assert verdict.clean and (verdict.steps, verdict.epochs, verdict.runs) == (STEPS, EPOCHS, 2), verdict
    assert (again.output / "saved_model.pb").exists()
    assert f"{bucket}/model/model.keras" in again.stdout()
    assert f"{bucket}/checkpoints/version-" in again.stdout()
    assert server.kills > 0 and min(gate.done[fault] for fault in ("503", "cut", "slow")) > 0
