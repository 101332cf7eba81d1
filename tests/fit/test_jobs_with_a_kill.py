"""The script of the docs under a master, a launcher and alone: killed, drained, and the model is Keras'."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edl_allreduce.testing.faults import Fault

pytestmark = [pytest.mark.training, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "fit.py"
NOT_NEEDED = {"model_zoo": None, "model_def": None, "training_data": None}
HISTORY = re.compile(r"history of rank (\d+): (\{.*\})")


@pytest.fixture(scope="module")
def images(digits_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `elasticdl data make digits --format=npy` writes them."""
    folder = tmp_path_factory.mktemp("images")
    np.save(folder / "image.npy", np.load(digits_data / "x.npy").reshape(-1, 8, 8).astype("uint8"))
    np.save(folder / "label.npy", np.load(digits_data / "y.npy"))
    return folder


@pytest.fixture(scope="module")
def by_keras(images: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[np.ndarray], dict]:
    """The same script with `model.fit`."""
    folder = tmp_path_factory.mktemp("keras")
    script = SCRIPT.read_text().replace("elastic.fit(\n    model,", "model.fit(")
    script = script.replace("    save=target,\n", "    verbose=0,\n") + "\nmodel.save(target)\n"
    assert "model.fit(" in script and "elastic.fit(" not in script.split('"""')[2]
    (folder / "train.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "train.py", str(images), "model.keras"],
        **{"cwd": folder, "check": True, "timeout": 240, "capture_output": True, "text": True},
    )
    return trained(folder / "model.keras"), histories(done.stdout)[0]


def trained(path: Path) -> list[np.ndarray]:
    import keras

    return [v.numpy() for v in keras.saving.load_model(path).weights]


def histories(text: str) -> list[dict]:
    return [json.loads(found) for _, found in HISTORY.findall(text)]


def check(path: Path, found: list[dict], by_keras: tuple[list[np.ndarray], dict]) -> None:
    weights, expected = by_keras
    for a, b in zip(weights, trained(path), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-3, atol=1e-4)
    assert found
    for history in found:
        assert history.keys() == expected.keys()
        for name, values in expected.items():
            np.testing.assert_allclose(history[name], values, rtol=1e-3, atol=1e-4, err_msg=name)


def test_workers_are_killed_and_drained_and_the_model_is_that_of_fit(tmp_path, launch, images, by_keras):
    """One is killed in the first step of the second epoch, where callbacks have just heard of it."""
    steps = -(-len(np.load(images / "label.npy")) // 48)
    job = launch(
        Fault("reduce", "kill", {"rank": 1, "step": steps}),
        Fault("compute", "hold", {"step": steps + 5}, repeat=True),
        Fault("compute", "terminate", {"rank": 0, "step": 2 * steps + 2}),
        **NOT_NEEDED,
        num_workers=3,
        job_command=f"python {SCRIPT} {images} {tmp_path / 'model.keras'}",
    )
    job.wait_for("ready", "worker 3", timeout=400)
    job.release()
    assert job.wait(400) == 0, job.story()
    assert {f["action"] for f in job.fired()} == {"kill", "hold", "terminate"}
    verdict = job.audit()
    assert verdict.clean and verdict.epochs == 4, f"{verdict}\n{job.story()}"
    found = [h for w in range(4) for h in histories(job.log(w))]
    assert len(found) >= 2, "the drained one ended without a history"
    check(tmp_path / "model.keras", found, by_keras)
    assert {p.name for p in tmp_path.glob("model-*.keras")} == {f"model-{n}.keras" for n in (1, 2, 3, 4)}


def test_a_fixed_ring_of_two_gives_the_same(tmp_path, images, by_keras):
    command = shutil.which("horovodrun") or str(Path(sys.executable).with_name("horovodrun"))
    done = subprocess.run(
        [command, "-np", "2", sys.executable, str(SCRIPT), str(images), str(tmp_path / "model.keras")],
        **{"cwd": tmp_path, "timeout": 300, "capture_output": True, "text": True, "env": dict(os.environ)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = histories(done.stdout)
    assert len(found) == 2
    check(tmp_path / "model.keras", found, by_keras)
