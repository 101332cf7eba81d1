"""Directories on this machine."""

from __future__ import annotations

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def cache() -> Path:
    """Everything this package keeps: binaries, images, running clusters. One file system, for hard links."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).resolve() / "kubelab"


def run_directory(name: str) -> Path:
    """Everything that belongs to one cluster; it exists exactly as long as the cluster does."""
    return cache() / "clusters" / name
