"""scripts/cluster for people: a shell on a node, and a control plane for a user without any rights."""

import os
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from kubelab import binaries, places
from tests.kubelab.command import cluster_command

NOBODY = 65534
PYTHON = "/usr/bin/python3"  # one that every user may run


@pytest.mark.cluster
def test_a_shell_on_a_node_is_in_its_network_and_knows_service_names(cluster, monkeypatch):
    monkeypatch.setenv("SHELL", "/bin/sh")
    script = "hostname; getent hosts kubernetes.default; ip -brief address show eth0; kubectl get nodes"
    said = cluster_command("shell", "node-b", "--name", cluster.name, stdin=script)
    assert said.splitlines()[0] == "node-b"
    assert "10.96.0.1" in said and cluster.node("node-b").address in said
    assert "node-a" in said


@pytest.fixture
def home_of_nobody():
    """A home for a user without rights, with a copy of the folder and of the programs that it may read."""
    with TemporaryDirectory(prefix="kubelab-nobody-") as home:
        root = Path(home)
        shutil.copytree(places.PACKAGE, root / "lifted" / "kubelab")
        shutil.copytree(places.PACKAGE.parent / "scripts", root / "lifted" / "scripts")
        for module in ("kubernetes", "kwok"):
            for name in next(m for m in binaries.MODULES if m.name == module).programs:
                (root / "assets").mkdir(exist_ok=True)
                shutil.copy(binaries.program(name), root / "assets")
        shutil.copytree(binaries.program("kwok").parent / "stages", root / "assets" / "stages")
        (root / "home").mkdir()
        os.chown(root / "home", NOBODY, NOBODY)
        root.chmod(0o755)
        yield root


@pytest.mark.controlplane
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else; else every test shows it")
@pytest.mark.skipif(not Path(PYTHON).exists(), reason=f"{PYTHON} is not there")
def test_any_user_can_have_a_control_plane_with_hollow_nodes(home_of_nobody):
    """With the folder alone, lifted out, and the machine's Python: it needs no package."""

    def cluster(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PYTHON, "-B", home_of_nobody / "lifted/scripts/cluster", *arguments],
            env={
                "HOME": str(home_of_nobody / "home"),
                "PATH": "/usr/bin:/bin",
                "KUBEBUILDER_ASSETS": str(home_of_nobody / "assets"),
            },
            **{"user": NOBODY, "group": NOBODY, "extra_groups": [], "cwd": "/"},
            **{"capture_output": True, "text": True, "check": False},
        )

    refused = cluster("up")
    assert refused.returncode == 1
    assert "real nodes are not possible here: real nodes need root" in refused.stderr
    up = cluster("up", "--no-nodes", "--hollow-nodes", "3")
    try:
        assert up.returncode == 0, up.stderr
        assert "and 3 hollow nodes" in cluster("status").stdout
    finally:
        assert cluster("down").returncode == 0
    assert list((home_of_nobody / "home/.cache/kubelab/clusters").iterdir()) == []
    assert "this machine allows a control plane with hollow nodes only" in cluster("status").stdout
