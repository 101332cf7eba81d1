"""What this machine allows: real nodes, a control plane with hollow nodes, or neither. And why."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path

from kubelab import binaries, commands, places
from kubelab.errors import MissingTool
from kubelab.locks import locked


class Tier(IntEnum):
    """Each tier includes the ones below it."""

    NONE = 0
    CONTROL_PLANE = 1
    NODES = 2


NAMES = {
    Tier.NONE: "no Kubernetes",
    Tier.CONTROL_PLANE: "a control plane with hollow nodes",
    Tier.NODES: "real nodes",
}

# program -> Debian package
_CONTROL_PLANE_PROGRAMS = {"openssl": "openssl"}
_NODE_PROGRAMS = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "/usr/lib/cni/ptp": "containernetworking-plugins",
    "nft": "nftables",
    "ip": "iproute2",
    "unshare": "util-linux",
    "mount": "mount",
    "busybox": "busybox-static",
}


@dataclass(frozen=True)
class Verdict:
    """The highest tier this machine allows, and what stands in the way of the next."""

    tier: Tier
    obstacle: str = ""

    def sentence(self) -> str:
        """One sentence for a person."""
        if self.tier is Tier.NODES:
            return "this machine allows real nodes"
        only = "" if self.tier is Tier.NONE else " only"
        return f"this machine allows {NAMES[self.tier]}{only}: {self.obstacle}"


@cache
def detect() -> Verdict:
    """Find out what is possible with what is installed."""
    if obstacle := _control_plane_obstacle():
        return Verdict(Tier.NONE, obstacle)
    if obstacle := _nodes_obstacle():
        return Verdict(Tier.CONTROL_PLANE, obstacle)
    return Verdict(Tier.NODES)


def require(tier: Tier) -> None:
    """Raise MissingTool unless this machine allows a tier; packages that it lacks are installed."""
    install(missing_packages())
    verdict = detect()
    if verdict.tier < tier:
        raise MissingTool(f"{NAMES[tier]} are not possible here: {verdict.obstacle}")


def missing_packages() -> list[str]:
    """Debian packages of programs that are not there."""
    programs = {**_CONTROL_PLANE_PROGRAMS, **_NODE_PROGRAMS}
    return sorted({package for program, package in programs.items() if commands.find(program) is None})


def install_command(packages: list[str]) -> list[str]:
    """How to get what is missing."""
    return ["apt-get", "install", "-y", "-q", "--no-install-recommends", *packages]


def install(packages: list[str]) -> None:
    """Install packages (and say so) when that is possible: as root, on Debian or a child of it."""
    if not packages or os.geteuid() != 0 or commands.find("apt-get") is None:
        return
    with locked(places.cache() / "packages.lock"):  # processes of one test run find the same missing
        _install([name for name in packages if not _installed(name)])


def _installed(package: str) -> bool:
    argv = ["dpkg-query", "--show", "--showformat=${db:Status-Status}", package]
    found = subprocess.run(argv, capture_output=True, text=True, check=False)
    return found.stdout == "installed"


def _install(packages: list[str]) -> None:
    if not packages:
        return
    print(f"kubelab: installing Debian packages: {' '.join(packages)}", file=sys.stderr, flush=True)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # A package that starts a service would start a second containerd on the machine: nobody asked for that.
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        for argv in (["apt-get", "update", "-q"], install_command(packages)):
            done = subprocess.run(argv, env=quiet, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                print(f"kubelab: {' '.join(argv)} failed: {done.stderr.strip()}", file=sys.stderr)
                return
    finally:
        if ours:
            policy.unlink()


def _control_plane_obstacle() -> str:
    if sys.platform != "linux":
        return f"it needs Linux, this is {sys.platform}"
    if commands.find("openssl") is None:
        return "openssl is missing (apt-get install openssl)"
    if not binaries.complete() and commands.find("go") is None:
        return "Kubernetes' programs must be built once and there is no Go compiler (https://go.dev/dl)"
    if not binaries.complete() and shutil.disk_usage(_existing(places.cache())).free < 6 << 30:
        return f"building Kubernetes' programs takes 6 GB of disk, there is less at {places.cache()}"
    return ""


def _nodes_obstacle() -> str:
    if os.geteuid() != 0:
        return "real nodes need root"
    if packages := missing_packages():
        return f"packages are missing ({' '.join(install_command(packages))})"
    tests = (
        # One machine with everything a node's network needs, gone when the command ends.
        "ip link add try0 type bridge && ip link add try1 type veth peer name try2 && nft add table bridge t",
        "mount -t tmpfs x /mnt && mkdir /mnt/u /mnt/w"
        " && mount -t overlay -o lowerdir=/etc,upperdir=/mnt/u,workdir=/mnt/w x /srv",
    )
    for test in tests:
        argv = [
            "unshare",
            "--net",
            "--pid",
            "--mount",
            "--uts",
            "--ipc",
            "--fork",
            "--mount-proc",
            "sh",
            "-c",
            test,
        ]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env=_with_sbin())
        if done.returncode != 0:
            return f"namespaces with a bridge, nftables and overlay mounts: {done.stderr.strip()}"
    return _cgroup_obstacle()


def _cgroup_obstacle() -> str:
    from kubelab import cgroups

    if not cgroups.hierarchies():
        return "no cgroup file system is mounted"
    probe = f"kubelab-probe-{os.getpid()}"
    try:
        cgroups.create(probe)
        cgroups.remove(probe)
    except OSError as error:
        in_container = "; a container needs the machine's own: docker run --privileged --cgroupns=host"
        return f"control groups cannot be made: {error}{in_container if error.errno == errno.EBUSY else ''}"
    names = {name for root in cgroups.hierarchies() for name in _controllers(root)}
    lacking = set(cgroups.NEEDED) - names
    return f"cgroup controllers are missing: {', '.join(sorted(lacking))}" if lacking else ""


def _controllers(root: Path) -> list[str]:
    file = root / "cgroup.controllers"
    if file.exists():
        return file.read_text().split()
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        if left.split()[4] == str(root):
            return right.split()[2].split(",")
    return []


def _with_sbin() -> dict[str, str]:
    return {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/bin:/bin"}


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)
