"""scripts/cluster, as people type it."""

import subprocess
import sys

from kubelab import places

COMMAND = [sys.executable, str(places.PACKAGE.parent / "scripts" / "cluster")]


def cluster_command(*arguments: str, stdin: str | None = None) -> str:
    """Run it; what it printed, when it succeeds."""
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False, input=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout
