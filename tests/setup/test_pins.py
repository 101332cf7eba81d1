"""The pinned versions are a set that its own members accept."""

from __future__ import annotations

import subprocess
import sys


def test_every_installed_package_has_what_it_asks_for():
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
