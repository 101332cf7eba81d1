"""Run a program and say well what went wrong when it fails."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

from kubelab.errors import CommandFailed, MissingTool

# Where Debian keeps tools for administrators; an ordinary user's PATH lacks them.
_MORE_PLACES = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/go/bin:/usr/lib/go/bin"


def find(program: str) -> str | None:
    """The path of a program, or None."""
    return shutil.which(program) or shutil.which(program, path=_MORE_PLACES)


def run(program: str | Path, *arguments: str | Path, stdin: str | None = None, timeout: float = 120.0) -> str:
    """Run a program to its end and return what it printed."""
    path = find(str(program))
    if path is None:
        raise MissingTool(f"{program} is not installed")
    argv = [path, *map(str, arguments)]
    try:
        done = subprocess.run(
            argv, input=stdin, capture_output=True, text=True, timeout=timeout, cwd="/", check=False
        )
    except subprocess.TimeoutExpired as error:
        raise CommandFailed(f"{shlex.join(argv)} did not end within {timeout:g} s") from error
    if done.returncode != 0:
        raise CommandFailed(f"{shlex.join(argv)} returned {done.returncode}: {done.stderr.strip()}")
    return done.stdout
