"""A real node: a machine with containerd, kubelet and kube-proxy, and what can happen to it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from kubelab import binaries, cgroups, images, network, pki
from kubelab.controlplane import client_kubeconfig, dump
from kubelab.errors import ClusterStateError, KubelabError
from kubelab.machines import Component, Machine
from kubelab.network import Cut
from kubelab.state import NodeSpec, State

CNI_PLUGINS = Path("/usr/lib/cni")
_EVICTION_MIB = 50


class Node:
    """One real node of a cluster."""

    def __init__(self, run: Path, state: State, name: str, control: Machine) -> None:
        self.name = name
        self._run = run
        self._state = state
        self._control = control
        self.machine = Machine(name, run)
        self.group = f"{cgroups.top(run)}/{name}"
        self.directory = run / "nodes" / name

    @property
    def spec(self) -> NodeSpec:
        """What was asked for."""
        return self._state.nodes[self.name]

    @property
    def address(self) -> str:
        """Its address in the cluster's network."""
        return network.address(self.spec.number)

    @property
    def containerd(self) -> Component:
        """Its container runtime."""
        return self._component(
            "containerd", ["/usr/bin/containerd", "--config", self.directory / "containerd.toml"]
        )

    @property
    def kubelet(self) -> Component:
        """Its kubelet; `node.kubelet.restart()` leaves the containers running."""
        return self._component(
            "kubelet",
            [
                binaries.program("kubelet"),
                f"--config={self.directory / 'kubelet.yaml'}",
                f"--kubeconfig={self._run / 'pki' / f'{self.name}.kubeconfig'}",
                *(f"--hostname-override={self.name}", f"--node-ip={self.address}"),
                *(f"--root-dir={self.directory / 'kubelet'}", f"--cert-dir={self.directory / 'kubelet'}"),
            ],
        )

    @property
    def proxy(self) -> Component:
        """Its kube-proxy, which makes Services work."""
        return self._component(
            "kube-proxy", [binaries.program("kube-proxy"), f"--config={self.directory / 'proxy.yaml'}"]
        )

    def _component(self, name: str, argv: list[str | Path]) -> Component:
        words = [str(part) for part in argv]
        return Component(f"{name}-{self.name}", self._run, words, self.machine, group=f"{self.group}/system")

    # --- life ---

    def prepare(self) -> None:
        """Write its files and give it its images; the machine is off."""
        self.directory.mkdir(parents=True, exist_ok=True)
        names = [f"DNS:{self.name}", f"IP:{self.address}"]
        pki.certificate(self._run / "pki", self.name, f"/O=system:nodes/CN=system:node:{self.name}", names)
        client_kubeconfig(self._run, self._state, self.name)
        images.seed(self.directory / "containerd")
        (self.directory / "cni").mkdir(exist_ok=True)
        (self.directory / "cni" / "10-pods.conflist").write_text(dump(self._cni()))
        (self.directory / "containerd.toml").write_text(self._containerd())
        (self.directory / "kubelet.yaml").write_text(dump(self._kubelet()))
        (self.directory / "proxy.yaml").write_text(dump(self._kube_proxy()))
        (self.directory / "resolv.conf").write_text(
            f"nameserver {network.DNS}\nsearch default.svc.cluster.local svc.cluster.local cluster.local\n"
        )

    def power_on(self) -> None:
        """Switch the machine on, plug it in, start containerd. Also after a power loss, as a reboot would."""
        self.machine.boot()
        cgroups.create(self.group, self.spec.cpu or machine_cpus())
        network.plug_in(self._control, self.machine, self.spec.number)
        self.machine.run("mount", "--bind", self.directory / "resolv.conf", "/etc/resolv.conf")
        # Kubelet would do this itself, at the same time as it makes sockets in there: now and then it loses.
        kubelet = self.directory / "kubelet"
        kubelet.mkdir(exist_ok=True)
        self.machine.run("mount", "--bind", kubelet, kubelet)
        self.machine.run("mount", "--make-rshared", kubelet)
        self._route()
        self.containerd.start()

    def join(self) -> None:
        """Start what makes the machine a node of the cluster; containerd must be there."""
        images.wait_for_containerd(self.machine)
        self.kubelet.start()
        self.proxy.start()

    def load(self, archive: Path, names: list[str]) -> None:
        """Import an archive of these images."""
        images.import_archive(self.machine, archive, names)

    def remove_files(self) -> None:
        """Forget it; the machine is off."""
        cgroups.remove(self.group)
        shutil.rmtree(self.directory)

    # --- what can happen to it ---

    def kill(self) -> None:
        """Cut its power: kubelet, containers and network are gone at once, and nobody gets a goodbye."""
        if self.machine.running:
            network.pull_cable(self._control, self.spec.number)
            cgroups.set_frozen(self.group, False)  # a frozen process would not die
            self.machine.kill()
            cgroups.remove(self.group)

    def start(self) -> None:
        """Power again after `kill`: it boots, and its kubelet finds what it had on disk."""
        if not self.machine.running:
            shutil.rmtree(self.directory / "ipam", ignore_errors=True)  # no pod of the old life is left
            self.power_on()
            self.join()

    def freeze(self) -> None:
        """Stop every process on it, kubelet and containers alike, as a paused virtual machine does."""
        cgroups.set_frozen(self.group, True)

    def thaw(self) -> None:
        """Let a frozen node go on as if nothing had been."""
        if self.machine.running:
            cgroups.set_frozen(self.group, False)

    def partition(self, *others: Node) -> None:
        """Cut it off from everybody, or only from the given nodes and their pods. Packets vanish silently."""
        if others:
            both = (network.address, network.pod_range)
            self._cut(*(Cut(self.spec.number, of(other.spec.number)) for other in others for of in both))
        else:
            self._cut(Cut(self.spec.number))

    def partition_from_api(self) -> None:
        """Cut it (and its pods) off from the API server only: pods still talk to pods."""
        self._cut(Cut(self.spec.number, network.CONTROL))

    def heal(self) -> None:
        """End all partitions of this node."""
        self._state.cuts = [cut for cut in self._state.cuts if cut.node != self.spec.number]
        self._cut()

    def _cut(self, *cuts: Cut) -> None:
        self._state.cuts = sorted({*self._state.cuts, *cuts})
        self._state.save(self._run)
        network.apply_cuts(self._control, self._state.cuts)

    def restore(self) -> None:
        """Undo everything above, whatever it was."""
        self.heal()
        self.thaw()
        self.start()
        for component in (self.containerd, self.kubelet, self.proxy):
            component.thaw()
            component.start()

    # --- pods ---

    def unplug_pod(self, address: str, plugged: bool = False) -> None:
        """Take the cable out of one pod on this node (True: put it back in)."""
        routes = json.loads(self.machine.network("ip", "-json", "route", "show", address))
        if not routes:
            raise KubelabError(f"node {self.name} has no pod with address {address}")
        # Dropped by rule: taking a cable's end down would lose the pod's routes for good.
        table = "pod-" + address.replace(".", "-")
        lines = [f"table ip {table}", f"delete table ip {table}"]
        if not plugged:
            lines.append(f"add table ip {table}")
            for hook in ("prerouting", "postrouting"):
                lines.append(f"add chain ip {table} {hook} {{ type filter hook {hook} priority -400; }}")
                for side in ("saddr", "daddr"):
                    lines.append(f"add rule ip {table} {hook} ip {side} {address} drop")
        self.machine.network("nft", "-f", "-", stdin="\n".join(lines) + "\n")

    def _route(self) -> None:
        machines = {
            spec.number: machine
            for name, spec in self._state.nodes.items()
            if (machine := Machine(name, self._run)).running
        }
        network.route_pods(self._control, machines)

    # --- settings ---

    def _containerd(self) -> str:
        unwanted = (
            "snapshotter.v1.aufs",
            "snapshotter.v1.btrfs",
            "snapshotter.v1.devmapper",
            "snapshotter.v1.zfs",
        )
        return f"""version = 2
root = "{self.directory / "containerd"}"
state = "/run/containerd"
disabled_plugins = [{", ".join(f'"io.containerd.{name}"' for name in unwanted)}]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "/run/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{images.PAUSE}"
  restrict_oom_score_adj = true  # not every root may lower it
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI_PLUGINS}"
    conf_dir = "{self.directory / "cni"}"
"""

    def _cni(self) -> dict[str, object]:
        # ptp, not bridge: everything between pods passes the node's routing, where kube-proxy's rules are.
        ipam = {
            "type": "host-local",
            "dataDir": str(self.directory / "ipam"),
            "ranges": [[{"subnet": network.pod_range(self.spec.number)}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        return {"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "ptp", "ipam": ipam}]}

    def _kubelet(self) -> dict[str, object]:
        keys = self._run / "pki"
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.address,
            "healthzBindAddress": "127.0.0.1",
            "authentication": {
                "anonymous": {"enabled": False},
                "x509": {"clientCAFile": str(keys / "ca.crt")},
            },
            "tlsCertFile": str(keys / f"{self.name}.crt"),
            "tlsPrivateKeyFile": str(keys / f"{self.name}.key"),
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "podLogsDir": str(self.directory / "pod-logs"),
            "volumePluginDir": str(self.directory / "volume-plugins"),
            "resolvConf": "",  # a pod's search list is its own
            "clusterDNS": [network.DNS],
            "clusterDomain": "cluster.local",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.group}/pods",
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,  # some machines still have version 1
            "featureGates": {"KubeletInUserNamespace": True},  # tolerates a root without CAP_SYS_RESOURCE
            "failSwapOn": False,
            "localStorageCapacityIsolation": False,
            "systemReserved": self._reserved(),
            "evictionHard": {"memory.available": f"{_EVICTION_MIB}Mi"},
            "imageGCHighThresholdPercent": 100,
            "serializeImagePulls": False,
            # A sign of life every quarter of the grace period.
            "nodeStatusUpdateFrequency": "2s",
            "nodeLeaseDurationSeconds": self._state.node_grace,
        }

    def _reserved(self) -> dict[str, str]:
        """What must be taken from this machine's size so that the wanted capacity is left."""
        reserved = {}
        if self.spec.cpu is not None:
            spare = _not_negative("CPUs", machine_cpus() - self.spec.cpu)
            reserved["cpu"] = f"{round(1000 * spare)}m"
        if self.spec.memory_mib is not None:
            spare = _not_negative(
                "MiB of memory", machine_memory_mib() - self.spec.memory_mib - _EVICTION_MIB
            )
            reserved["memory"] = f"{spare}Mi"
        return reserved

    def _kube_proxy(self) -> dict[str, object]:
        keep = {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"}
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clusterCIDR": network.PODS,
            "hostnameOverride": self.name,
            "clientConnection": {"kubeconfig": str(self._run / "pki" / "cluster-admin.kubeconfig")},
            "conntrack": keep,  # these settings belong to the whole machine
        }


def _not_negative(unit: str, spare: float) -> float:
    if spare < 0:
        raise ClusterStateError(
            f"a node cannot offer more than this machine has: {-spare:g} {unit} are missing"
        )
    return spare


def machine_cpus() -> int:
    """The processors of this machine."""
    return sum(line.startswith("processor") for line in Path("/proc/cpuinfo").read_text().splitlines())


def machine_memory_mib() -> int:
    """The memory of this machine."""
    return int(Path("/proc/meminfo").read_text().split()[1]) // 1024
