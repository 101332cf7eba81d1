"""Control groups of nodes, in both versions of the kernel's interface."""

import os
import subprocess
from pathlib import Path

import pytest

from kubelab import cgroups, eventually

VERSION_2 = {root for root, second in cgroups.hierarchies().items() if second}


def _tree(root: Path, groups: list[str], files: dict[str, str]) -> Path:
    """Files as the kernel would make them with a group."""
    for group in (".", *groups):
        (root / group).mkdir(parents=True)
        for name, text in files.items():
            (root / group / name).write_text(text)
    return root


@pytest.fixture
def only(monkeypatch):
    def see(root: Path, second_version: bool) -> None:
        cgroups.unified.cache_clear()
        monkeypatch.setattr(cgroups, "hierarchies", lambda: {root: second_version})

    yield see
    cgroups.unified.cache_clear()


@pytest.mark.parametrize(("version", "file", "one"), [(1, "cpu.shares", 1024), (2, "cpu.weight", 100)])
def test_a_node_weighs_as_much_as_its_processors_and_a_cluster_as_its_nodes(
    tmp_path, only, version, file, one
):
    groups = [f"lab/{node}{child}" for node in "ab" for child in ("", "/system", "/pods")]
    kernel = {"cgroup.controllers": "cpu", "cgroup.subtree_control": ""} if version == 2 else {}
    root = _tree(tmp_path / "cgroup", ["lab", *groups], {file: str(one), **kernel})
    only(root, version == 2)
    for node, cpus in (("a", 4), ("b", 0.5)):
        cgroups.create(f"lab/{node}", cpus)
    weights = {group: int((root / group / file).read_text()) / one for group in (".", "lab", *groups)}
    assert weights == {
        **{".": 1, "lab": 4.5, "lab/a": 4, "lab/a/pods": 4, "lab/a/system": 1},
        **{"lab/b": 0.5, "lab/b/pods": 0.5, "lab/b/system": 1},
    }
    if version == 2:
        assert (root / "lab" / "cgroup.subtree_control").read_text() == "+cpu"
        assert (root / "lab/a/pods/cgroup.subtree_control").read_text() == "", "what is below is kubelet's"


def test_version_1_hands_the_cpuset_down(tmp_path, only):
    root = _tree(tmp_path / "cgroup", ["lab", "lab/a", "lab/a/system", "lab/a/pods"], {"cpuset.cpus": ""})
    (root / "cpuset.cpus").write_text("0-3")
    only(root, False)
    cgroups.create("lab/a")
    assert (root / "lab/a/pods/cpuset.cpus").read_text() == "0-3"


@pytest.mark.cluster
@pytest.mark.skipif(not VERSION_2, reason="no file system of cgroup version 2 is mounted")
def test_in_version_2_a_group_is_joined_frozen_thawed_and_removed(only):
    (root,) = VERSION_2
    only(root, True)
    lab = f"kubelab-test-{os.getpid()}"
    group = f"{lab}/a"
    cgroups.create(group)
    handed_down = (root / group / "cgroup.subtree_control").read_text().split()
    assert handed_down == (root / "cgroup.controllers").read_text().split()
    process = subprocess.Popen(cgroups.joining(f"{group}/system", ["sleep", "1000"]))
    try:
        eventually((root / group / "system/cgroup.procs").read_text, "the process is in")
        cgroups.set_frozen(group, True)
        eventually(lambda: "frozen 1" in (root / group / "cgroup.events").read_text(), "it is frozen")
        cgroups.set_frozen(group, False)
        eventually(lambda: "frozen 0" in (root / group / "cgroup.events").read_text(), "it goes on")
    finally:
        process.kill()
        process.wait()
        cgroups.remove(lab)
    assert not (root / lab).exists()
