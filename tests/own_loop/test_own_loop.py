"""A script with its own loop, launched elastically: killed, drained, and alone. The model is the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edl_allreduce.testing.faults import Fault

pytestmark = pytest.mark.training

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "own_loop.py"
NOT_NEEDED = {"model_zoo": None, "model_def": None, "training_data": None}
STEPS = 4 * 13


@pytest.fixture(scope="module")
def images(digits_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `elasticdl data make digits --format=npy` writes them."""
    folder = tmp_path_factory.mktemp("images")
    np.save(folder / "image.npy", np.load(digits_data / "x.npy").reshape(-1, 8, 8).astype("uint8"))
    np.save(folder / "label.npy", np.load(digits_data / "y.npy"))
    return folder


def trained(path: Path) -> list[np.ndarray]:
    import keras

    return [v.numpy() for v in keras.saving.load_model(path).weights]


@pytest.fixture(scope="module")
def alone(images: Path, tmp_path_factory: pytest.TempPathFactory) -> list[np.ndarray]:
    """What one process gives that nobody launched."""
    folder = tmp_path_factory.mktemp("alone")
    script = SCRIPT.read_text().replace("records=len(x),", "records=len(x), batch_size=48, epochs=4,")
    (folder / "my_train.py").write_text(script)
    subprocess.run(
        [sys.executable, "my_train.py", str(images), "model.keras"], cwd=folder, check=True, timeout=240
    )
    return trained(folder / "model.keras")


def test_workers_are_killed_and_drained_and_the_loop_goes_on(tmp_path, launch, images, alone):
    job = launch(
        Fault("reduce", "kill", {"rank": 1, "step": 10}),
        Fault("compute", "hold", {"step": 20}, repeat=True),
        Fault("compute", "terminate", {"rank": 0, "step": 30}),
        **NOT_NEEDED,
        num_workers=3,
        num_epochs=4,
        job_command=f"python {SCRIPT} {images} {tmp_path / 'model.keras'}",
    )
    job.wait_for("ready", "worker 3")
    job.release()
    assert job.wait() == 0, job.story()
    verdict = job.audit()
    assert verdict.clean and (verdict.steps, verdict.epochs) == (STEPS, 4), f"{verdict}\n{job.story()}"
    assert {f["action"] for f in job.fired()} == {"kill", "hold", "terminate"}
    for expected, got in zip(alone, trained(tmp_path / "model.keras"), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)
    endings = [line for w in range(4) for line in job.log(w).splitlines() if "finished=" in line]
    assert sum("finished=True" in line for line in endings) >= 2
    assert sum("finished=False" in line for line in endings) == 1, "the drained one ended its script in order"
    best = {line.rsplit(" ", 1)[1] for line in endings if "finished=True" in line}
    assert len(best) == 1, "plain values are in step, also in those who came later"


def test_what_the_script_raises_fails_the_job_with_its_own_words(tmp_path, launch):
    script = tmp_path / "broken.py"
    script.write_text(
        "import tensorflow as tf\n"
        "from edl_allreduce import elastic\n"
        "v = tf.Variable(1.0)\n"
        "with elastic.join(records=10, state=[v]) as job:\n"
        "    for step in job.steps():\n"
        "        with step:\n"
        "            raise ValueError('my own mistake')\n"
    )
    job = launch(**NOT_NEEDED, num_workers=1, job_command=f"python {script}", max_worker_crashes=0)
    assert job.wait() == 1
    assert "my own mistake" in job.stdout(), job.story()


def test_a_command_that_does_not_exist_fails_at_once(launch):
    job = launch(**NOT_NEEDED, num_workers=1, job_command="no-such-program --x")
    assert job.wait() == 1
    assert "no-such-program cannot be started" in job.stdout(), job.story()
