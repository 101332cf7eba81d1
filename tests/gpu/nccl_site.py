"""A Horovod with NCCL beside the one of the virtual environment, made once and kept in the cache.

    python tests/gpu/nccl_site.py      build it (some minutes, 500 MB of NVIDIA's packages), print where it is

Whoever puts that directory in front of its path has the build for GPUs; the virtual environment stays.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

HOROVOD = Path(__file__).resolve().parents[2] / "third_party" / "horovod"
sys.path.insert(0, str(HOROVOD))

import build as horovod_build  # noqa: E402

# The versions that TensorFlow 2.21's and-cuda gets today.
PACKAGES = (
    "nvidia-nccl-cu12==2.32.3",
    "nvidia-cuda-runtime-cu12==12.9.79",
    "nvidia-cuda-nvcc-cu12==12.9.86",
    "nvidia-cuda-cccl-cu12==12.9.27",
    "nvidia-cuda-nvrtc-cu12==12.9.86",
)


def _installed(home: Path, *packages: str) -> Path:
    """These packages in a directory of their own; a half of it is never found."""
    if not home.exists():
        home.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f"{home.name}-", dir=home.parent))
        command = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", str(draft), *packages]
        subprocess.run([sys.executable, *command], check=True)
        try:
            draft.replace(home)
        except OSError:  # somebody else was faster
            shutil.rmtree(draft)
    return home


def nvidia() -> Path:
    """NVIDIA's packages."""
    key = hashlib.sha256("\n".join(PACKAGES).encode()).hexdigest()[:12]
    return _installed(horovod_build.cache_root() / "nvidia" / key, *PACKAGES)


def build_environment() -> Mapping[str, str]:
    return {**os.environ, "HOROVOD_GPU_OPERATIONS": "NCCL", "PYTHONPATH": str(nvidia())}


def wheel() -> Path:
    """The wheel, by the command that a user would run."""
    command = [sys.executable, str(HOROVOD / "build.py"), "--python", sys.executable]
    done = subprocess.run(command, env=build_environment(), stdout=subprocess.PIPE, text=True, check=True)
    return Path(done.stdout.strip())


def make() -> Path:
    """Horovod and NVIDIA's packages in one directory, as pip would have put them into site-packages."""
    built = wheel()
    home = _installed(horovod_build.cache_root() / "nccl" / built.parent.name, str(built))
    if not (home / "nvidia").exists():
        (home / "nvidia").symlink_to(nvidia() / "nvidia")
    return home


if __name__ == "__main__":
    print(make())
