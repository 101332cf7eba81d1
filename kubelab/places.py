"""Directories on this machine."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def cache() -> Path:
    """Everything this package keeps: binaries, images, running clusters. One file system, for hard links."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).resolve() / "kubelab"


def run_directory(name: str) -> Path:
    """Everything that belongs to one cluster; it exists exactly as long as the cluster does."""
    return cache() / "clusters" / name


def keep_last_used(used: Path, count: int) -> None:
    """Note that a directory is used, and remove those beside it but the `count` that were used last."""
    os.utime(used)
    by_use = sorted(used.parent.iterdir(), key=lambda path: path.stat().st_mtime)
    for old in by_use[:-count]:
        shutil.rmtree(old)
