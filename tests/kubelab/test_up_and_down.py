"""The life of a cluster as its users see it: scripts/cluster up, down, status, and nothing left behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kubelab import Cluster, commands, eventually, places, processes
from tests.kubelab.command import COMMAND, cluster_command

pytestmark = pytest.mark.cluster

# Where programs of a node like to leave something.
PLACES = ("/run", "/var/lib", "/var/log", "/var/run/netns", "/opt", "/etc/cni", "/usr/libexec/kubernetes")


@pytest.fixture
def name():
    own = f"life-{os.getpid()}"
    yield own
    Cluster.take_down(own)


def _machine_as_it_is() -> set[str]:
    """All that a cluster could leave behind, apart from the ones that others run at the same time."""
    own = f"life-{os.getpid()}"
    found = [f"mount: {line.split()[4]}" for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    found += [f"file: {path}" for place in PLACES for path in Path(place).glob("*")]
    found += [f"file: {path}" for path in places.run_directory(own).parent.glob(f"{own}*")]
    found += [f"cgroup: {path}" for path in Path("/sys/fs/cgroup").rglob("kubelab-*") if own in path.name]
    found += [f"process: {process}" for process in processes.marked(places.run_directory(own))]
    for what in ("link", "address", "route"):
        found += commands.run("ip", "-brief", what).splitlines()
    found += commands.run("nft", "list", "ruleset").splitlines()
    return set(found)


@pytest.mark.timeout(900)
def test_three_times_up_and_down_leaves_the_machine_as_it_was(name):
    before = _machine_as_it_is()
    for _ in range(3):
        cluster = Cluster.up(name, nodes=["node-a"])
        assert cluster.api.ready()
        cluster.down()
        assert _machine_as_it_is() == before


def test_up_twice_is_fine_and_repairs_what_broke(name):
    cluster_command("up", "--name", name, "--nodes", "1")
    first = Cluster.attach(name)
    first.node("node-a").kubelet.kill()
    first.scheduler.kill()
    assert "was up already" in cluster_command("up", "--name", name)
    again = Cluster.attach(name)
    assert again.state.server == first.state.server
    assert again.node("node-a").kubelet.running and again.scheduler.running
    assert "Ready" in cluster_command("status", "--name", name)


def test_two_clusters_side_by_side_do_not_touch_each_other(cluster, namespace, start_pod, name):
    start_pod("steady", "exec sleep 1000", "node-a")
    pid = cluster.container_pid(namespace, "steady")
    other = Cluster.up(name, nodes=["node-a"])
    assert namespace not in {item["metadata"]["name"] for item in other.api.items("/api/v1/namespaces")}
    other.down()
    cluster.wait_for_nodes()
    assert cluster.container_pid(namespace, "steady") == pid


def test_down_cleans_up_after_a_killed_up_wherever_it_was(name):
    before = _machine_as_it_is()
    run = places.run_directory(name)
    for reached in ("control-plane.json", "kube-apiserver.json", "containerd-node-a.json"):
        command = subprocess.Popen([*COMMAND, "up", "--name", name], stdout=subprocess.DEVNULL)
        eventually((run / "processes" / reached).exists, f"up has reached {reached}", 60, 0.005)
        command.send_signal(signal.SIGKILL)
        command.wait()
        cluster_command("down", "--name", name)
        assert _machine_as_it_is() == before


def test_a_cluster_ends_with_the_process_that_it_was_made_for(name):
    before = _machine_as_it_is()
    program = (
        "import sys, time; from kubelab import Cluster; from kubelab.cluster import guard;"
        f"g = guard({name!r}); Cluster.up({name!r}, nodes=[]); print('up', flush=True); time.sleep(1000)"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=places.PACKAGE.parent
    )
    assert owner.stdout is not None
    with owner.stdout:
        assert owner.stdout.readline() == "up\n"
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    eventually(lambda: _machine_as_it_is() == before, "nothing is left", 30)


def test_down_without_a_cluster_is_fine(name):
    cluster_command("down", "--name", name)
