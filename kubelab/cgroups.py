"""Control groups of nodes, in both versions of the kernel's interface.

Each node has one group with two children: `system` (kubelet, containerd) and `pods` (what kubelet makes).
Two kubelets under one group would end each other's pods as orphans; and the parent freezes a node whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
from functools import cache
from pathlib import Path

from kubelab.waiting import eventually

NEEDED = ("cpu", "memory", "pids")
"""Controllers without which there is no node."""

# What one process weighs by default, and the most that a group can have; in version 1 and in version 2.
_WEIGHTS = {"cpu.shares": (1024, 262144), "cpu.weight": (100, 10000)}


@cache
def hierarchies() -> dict[Path, bool]:
    """Mount points of cgroup file systems; the value says whether it is version 2."""
    found = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind = right.split()[0]
        if kind in ("cgroup", "cgroup2"):
            found[Path(left.split()[4])] = kind == "cgroup2"
    return found


@cache
def unified() -> bool:
    """Whether version 2 alone is in use."""
    return all(hierarchies().values())


def top(run: Path) -> str:
    """The name of a cluster's group. Names are machine-wide, so a hash of the run directory is in it."""
    return f"kubelab-{run.name}-{hashlib.sha256(str(run).encode()).hexdigest()[:8]}"


def create(group: str, cpus: float = 1.0) -> None:
    """Make a node's group with its two children, in every hierarchy.

    On a busy machine it gets as much as `cpus` processes would, as if it were a machine of its own: kubelet
    shares out what the node has, not what others leave.
    """
    for root, second_version in hierarchies().items():
        if second_version and not unified():
            continue  # a hybrid machine's version 2 has no controllers
        path = root
        for part in group.split("/"):
            _hand_down(path, second_version)
            path /= part
            path.mkdir(exist_ok=True)
            _inherit_cpuset(path)
        _hand_down(path, second_version)
        for child in ("system", "pods"):
            (path / child).mkdir(exist_ok=True)
            _inherit_cpuset(path / child)
        _weigh(path, cpus)
        _weigh(path / "pods", cpus)
        if path.parent != root:
            _weigh_together(path.parent)


def _weigh(path: Path, cpus: float) -> None:
    """Say how much processor time a group gets beside others that want some too."""
    for name, (of_one, most) in _WEIGHTS.items():
        if (path / name).exists():
            (path / name).write_text(str(min(most, max(2, round(of_one * cpus)))))


def _weigh_together(path: Path) -> None:
    """A cluster's group weighs as much as its nodes do together."""
    for name, (of_one, _) in _WEIGHTS.items():
        if weights := [int(file.read_text()) for file in path.glob(f"*/{name}")]:
            _weigh(path, sum(weights) / of_one)


def _hand_down(path: Path, second_version: bool) -> None:
    """Version 2 gives children only the controllers that their parent hands down."""
    if second_version:
        for name in (path / "cgroup.controllers").read_text().split():
            try:  # one by one: the kernel takes all that are written together, or none
                (path / "cgroup.subtree_control").write_text(f"+{name}")
            except OSError:
                if name in NEEDED:
                    raise


def _inherit_cpuset(path: Path) -> None:
    """Version 1 lets no process into a group whose cpuset is empty."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        if (path / name).exists() and not (path / name).read_text().strip():
            with contextlib.suppress(OSError):  # version 2 inherits by itself
                (path / name).write_text((path.parent / name).read_text())


def joining(group: str, argv: list[str]) -> list[str]:
    """A command that puts itself into a group and then becomes `argv`."""
    files = [str(root / group / "cgroup.procs") for root in hierarchies() if (root / group).exists()]
    script = "".join(f"echo 0 > {shlex.quote(file)} && " for file in files)
    return ["/bin/sh", "-c", f'{script}exec "$@"', "sh", *argv]


def set_frozen(group: str, frozen: bool) -> None:
    """Freeze or thaw every process of a group and of its children at once."""
    for root, second_version in hierarchies().items():
        name, words = ("cgroup.freeze", "01") if second_version else ("freezer.state", ("THAWED", "FROZEN"))
        file = root / group / name
        if file.exists() and (unified() or not second_version):
            file.write_text(words[frozen])


def processes(group: str, container: str) -> list[int]:
    """Processes of one container, by the container's id, numbered as seen from this machine."""
    for root in hierarchies():
        for directory in (root / group).rglob(container):
            return [int(pid) for pid in (directory / "cgroup.procs").read_text().split()]
    return []


def remove(group: str) -> None:
    """Remove a group and all below it; its processes must have ended."""
    for root in hierarchies():
        if (root / group).exists():
            eventually(lambda r=root: _removed(r / group), f"cgroup {root / group} can be removed", 30, 0.02)  # type: ignore[misc]


def _removed(path: Path) -> bool:
    try:
        for directory, _, _ in os.walk(path, topdown=False):
            os.rmdir(directory)  # noqa: PTH106 - a str from os.walk
    except FileNotFoundError:
        return False  # the kernel removed something at the same time: look again
    except OSError:
        return False  # still busy: the kernel lags behind the end of processes
    return True
