"""What starts the ranks: horovodrun, or mpirun with a Horovod that was built with MPI."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAMS = Path(sys.executable).parent
BUILD = Path(__file__).resolve().parents[2] / "third_party" / "horovod" / "build.py"

Start = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def horovod_with_mpi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Beside the Horovod of this Python, which stays as it is. Its first build takes minutes."""
    done = subprocess.run(
        ["nice", sys.executable, str(BUILD), "--python", sys.executable],
        env={**os.environ, "HOROVOD_WITH_MPI": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    folder = tmp_path_factory.mktemp("horovod-with-mpi")
    with zipfile.ZipFile(done.stdout.strip()) as wheel:
        wheel.extractall(folder)
    return folder


@pytest.fixture
def start(request: pytest.FixtureRequest) -> Start:
    """`start("mpirun", 2, sys.executable, …)`"""

    def run(launcher: str, ranks: int, *words: object, mpi: bool = False) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
        options = []
        if launcher == "mpirun":
            options = ["--allow-run-as-root", "--oversubscribe"]
            environment["LD_LIBRARY_PATH"] = str(PROGRAMS.parent / "lib")
        if mpi:
            environment["PYTHONPATH"] = str(request.getfixturevalue("horovod_with_mpi"))
        command = [PROGRAMS / launcher, *options, "-np", ranks, *words]
        return subprocess.run(
            [str(word) for word in command], capture_output=True, text=True, timeout=240, env=environment
        )

    return run
