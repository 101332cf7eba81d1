"""A cluster: up, down, its parts, and what a test does with it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from kubelab import (
    binaries,
    cgroups,
    commands,
    controlplane,
    images,
    network,
    pki,
    places,
    processes,
)
from kubelab.api import POD_ENDED, Api, Object, pod_path, takes_pods
from kubelab.errors import ApiError, ClusterStateError, KubelabError
from kubelab.faults import FaultProxy
from kubelab.locks import locked
from kubelab.machines import Component, Machine
from kubelab.nodes import Node
from kubelab.state import Kind, NodeSpec, State
from kubelab.waiting import eventually

_CONTROL = "control-plane"
_API_PORT = 6443


class Cluster:
    """A running cluster. `Cluster.up` makes one, `Cluster.attach` finds one that another process made."""

    def __init__(self, run: Path, state: State) -> None:
        self.run = run
        self.state = state
        self.control = Machine(_CONTROL, run) if state.kind is Kind.REAL else None
        self.api = Api(state.server, run / "pki" / "ca.crt", state.token)

    # --- life ---

    @classmethod
    def up(
        cls,
        name: str = "kubelab",
        *,
        kind: Kind = Kind.REAL,
        nodes: Iterable[str] = ("node-a", "node-b"),
        hollow: bool = False,
        node_grace: int | None = None,
    ) -> Cluster:
        """Start a cluster, or return the one of this name that is up already.

        `node_grace` is after how many seconds of silence a node is NotReady; 8 with real nodes, because tests
        wait for it, and 40, as usual, with hollow ones only, because hundreds of them are slower to renew.
        """
        run = places.run_directory(name)
        # Not all: whoever wants no hollow nodes need not wait for KWOK, and the other way round.
        more = ["coredns", "tools"] if kind is Kind.REAL else []
        binaries.ensure("kubernetes", *more, *(["kwok"] if hollow else []))
        if kind is Kind.REAL:
            images.ensure_basic()
        with locked(_lock(run)):
            state = State.load(run)
            if state is not None and state.ready:
                cluster = cls(run, state)
                cluster.restore()
                return cluster
            _sweep(run)
            grace = node_grace or (8 if kind is Kind.REAL else 40)
            cluster = cls._new(run, kind, hollow, grace)
            cluster._start(list(nodes) if kind is Kind.REAL else [])
            return cluster

    @classmethod
    def attach(cls, name: str = "kubelab") -> Cluster:
        """The cluster of this name, which must be up."""
        run = places.run_directory(name)
        state = State.load(run)
        if state is None or not state.ready:
            raise ClusterStateError(
                f"cluster {name} is not up; start it with: scripts/cluster up --name {name}"
            )
        return cls(run, state)

    @staticmethod
    def take_down(name: str = "kubelab") -> None:
        """End a cluster and remove every trace of it, in whatever state it is. None there: fine."""
        run = places.run_directory(name)
        with locked(_lock(run)):
            _sweep(run)
            _lock(run).unlink()

    def down(self) -> None:
        """End this cluster and remove every trace of it."""
        self.take_down(self.name)

    @property
    def name(self) -> str:
        """Its name."""
        return self.run.name

    @classmethod
    def _new(cls, run: Path, kind: Kind, hollow: bool, grace: int) -> Cluster:
        (run / "pki").mkdir(parents=True, mode=0o700)
        pki.authority(run / "pki")
        token = pki.admin_token(run / "pki")
        if kind is Kind.REAL:
            listener = socket.create_server(("127.0.0.1", 0))  # handed to the gate, below
            ports = (_API_PORT, 2379, 2380)
            host, server = network.CONTROL, f"https://127.0.0.1:{listener.getsockname()[1]}"
        else:
            ports = _free_ports()
            host, server = "127.0.0.1", f"https://127.0.0.1:{ports[0]}"
        state = State(kind, host, *ports, server, token, grace, hollow)
        state.save(run)
        cluster = cls(run, state)
        if cluster.control is not None:
            with listener:
                cluster.control.boot()
                network.build_switch(cluster.control)
                argv = [sys.executable, "-I", str(places.PACKAGE / "gate.py")]
                target = [str(listener.fileno()), host, str(_API_PORT)]
                Component("gate", run, [*argv, *target], cluster.control, (listener.fileno(),)).start()
        controlplane.write_credentials(run, state)
        controlplane.write_corefile(run)
        if hollow:
            controlplane.write_stages(run)
        return cluster

    def _start(self, names: list[str]) -> None:
        """Bring everything up, as much at once as possible."""
        parts = self.components
        for name in ("etcd", "kube-apiserver"):
            parts[name].start()
        for number, name in enumerate(names, 1):
            self.state.nodes[name] = NodeSpec(number)
        self.state.save(self.run)
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(self.wait_for_api)
            for node in self.nodes.values():
                node.prepare()
                node.power_on()
            waiting.result()
            for part in parts.values():
                part.start()
            list(pool.map(Node.join, self.nodes.values()))
        self.point_service_at(self.state.host, self.state.api_port)
        self.wait_for_nodes()
        self.state.ready = True
        self.state.save(self.run)

    # --- parts ---

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig of an administrator, for use on this machine."""
        return self.run / "kubeconfig"

    @property
    def components(self) -> dict[str, Component]:
        """The control plane's programs by name: kill, start, restart, freeze, thaw."""
        return controlplane.components(self.run, self.state, self.control)

    @property
    def etcd(self) -> Component:
        """The database."""
        return self.components["etcd"]

    @property
    def apiserver(self) -> Component:
        """The API server."""
        return self.components["kube-apiserver"]

    @property
    def scheduler(self) -> Component:
        """The scheduler."""
        return self.components["kube-scheduler"]

    @property
    def controller_manager(self) -> Component:
        """The controllers."""
        return self.components["kube-controller-manager"]

    @property
    def nodes(self) -> dict[str, Node]:
        """The real nodes by name."""
        if self.control is None:
            return {}
        return {name: Node(self.run, self.state, name, self.control) for name in self.state.nodes}

    def node(self, name: str) -> Node:
        """A real node."""
        return self.nodes[name]

    def add_node(self, name: str, *, cpu: float | None = None, memory_mib: int | None = None) -> Node:
        """Add a real node that offers this much to pods, and wait until it is Ready."""
        if self.control is None:
            raise ClusterStateError("a cluster without real nodes cannot get one; see add_hollow_nodes")
        if name in self.state.nodes:
            raise ClusterStateError(f"there is a node {name} already")
        used = {spec.number for spec in self.state.nodes.values()}
        number = next(n for n in range(1, network.MOST_NODES + 1) if n not in used)
        self.state.nodes[name] = NodeSpec(number, cpu, memory_mib)
        self.state.save(self.run)
        node = self.node(name)
        node.prepare()
        node.power_on()
        node.join()
        self.wait_for_nodes([name])
        return node

    def remove_node(self, name: str) -> None:
        """Remove a real node and its object."""
        node = self.node(name)
        node.heal()
        node.kill()
        self.api.delete(f"/api/v1/nodes/{name}")
        node.remove_files()
        del self.state.nodes[name]
        self.state.save(self.run)

    def add_hollow_nodes(
        self,
        count: int,
        *,
        prefix: str = "hollow",
        cpu: int = 16,
        memory_gib: int = 64,
        pods: int = 110,
        labels: dict[str, str] | None = None,
    ) -> list[str]:
        """Add nodes that only look like nodes; they carry the taint kubelab/hollow:NoSchedule."""
        if not self.state.hollow:
            self.state.hollow = True
            self.state.save(self.run)
            controlplane.write_stages(self.run)
        self.components["kwok"].start()
        names = [f"{prefix}-{number}" for number in range(count)]
        objects = [controlplane.hollow_node(name, cpu, memory_gib, labels or {}, pods) for name in names]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda node: self.api.create("/api/v1/nodes", node), objects))
        self.wait_for_nodes(names)
        return names

    def remove_hollow_nodes(self) -> None:
        """Remove all hollow nodes; KWOK goes on running."""
        if self.state.hollow:
            self.api.text("DELETE", "/api/v1/nodes", query={"labelSelector": "type=hollow"})

    # --- waiting ---

    def wait_for_api(self) -> None:
        """Wait until the API server is ready."""
        try:
            eventually(self.api.ready, "the API server is ready", 180, 0.05)
        except KubelabError as error:
            ends = "\n".join(f"{part.name}:\n{part.tail(5)}" for part in (self.etcd, self.apiserver))
            raise ClusterStateError(f"{error}\n{ends}") from error

    def wait_for_nodes(self, names: Iterable[str] | None = None, timeout: float = 180.0) -> None:
        """Wait until the given nodes (all that were asked for, unless named) are Ready and take pods."""
        wanted = set(self.state.nodes if names is None else names)
        seen: dict[str, bool] = {}

        def all_ready() -> bool:
            seen.update(
                {node["metadata"]["name"]: takes_pods(node) for node in self.api.items("/api/v1/nodes")}
            )
            return all(seen.get(name) for name in wanted)

        try:
            eventually(all_ready, f"nodes {sorted(wanted)[:10]} are Ready", timeout, 0.1)
        except KubelabError as error:
            late = [name for name in wanted if not seen.get(name)][:10]
            ends = [f"{name}:\n{self.node(name).kubelet.tail(5)}" for name in late if name in self.nodes]
            raise ClusterStateError("\n".join([f"{error}; not Ready: {late}", *ends])) from error

    def wait_for_pod(
        self, namespace: str, name: str, phase: str = "Running", timeout: float = 60.0
    ) -> Object:
        """Wait until a pod is in a phase, and return it. Waiting for Running also ends when it has ended."""
        ends = (phase, *POD_ENDED)  # another end than the one that is waited for is for ever
        try:
            pod = eventually(lambda: self._pod_in(namespace, name, ends), f"pod {name} is {phase}", timeout)
        except KubelabError as error:
            found = self.pod(namespace, name)
            status = json.dumps(found["status"], indent=1) if found else "it does not exist"
            raise ClusterStateError(f"{error}; the pod: {status}") from error
        if phase in POD_ENDED and pod["status"]["phase"] != phase:
            said = self.logs(namespace, name, pod["spec"]["containers"][0]["name"])[-2000:]
            status = json.dumps(pod["status"].get("containerStatuses"), indent=1)
            raise ClusterStateError(f"pod {name} ended, but not as {phase}: {status}\nIt said:\n{said}")
        return pod

    def _pod_in(self, namespace: str, name: str, phases: tuple[str, ...]) -> Object | None:
        pod = self.pod(namespace, name)
        return pod if pod is not None and pod["status"].get("phase") in phases else None

    # --- work with objects ---

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout: float = 120.0) -> str:
        """Run kubectl as administrator and return what it printed."""
        return commands.run(
            binaries.program("kubectl"),
            f"--kubeconfig={self.kubeconfig}",
            *arguments,
            stdin=stdin,
            timeout=timeout,
        )

    def apply(self, *objects: Object | str, namespace: str | None = None) -> None:
        """Apply objects, or YAML text, strictly: an unknown field is an error."""
        place = ["--namespace", namespace] if namespace else []
        for part in objects:
            text = part if isinstance(part, str) else json.dumps(part)
            self.kubectl("apply", "--server-side", "--validate=strict", "-f", "-", *place, stdin=text)

    def pod(self, namespace: str, name: str) -> Object | None:
        """A pod, or None."""
        try:
            return self.api.get(pod_path(namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def pods(self, namespace: str, selector: str = "") -> list[Object]:
        """The pods of a namespace."""
        return self.api.items(pod_path(namespace), **({"labelSelector": selector} if selector else {}))

    def logs(self, namespace: str, pod: str, container: str | None = None, previous: bool = False) -> str:
        """What a container has printed."""
        query: dict[str, str] = {"container": container} if container else {}
        if previous:
            query["previous"] = "true"
        return self.api.text("GET", pod_path(namespace, pod) + "/log", query=query)

    def container_pid(self, namespace: str, pod: str, container: str | None = None) -> int:
        """The first process of a pod's container, as numbered on this machine: for os.kill."""
        found = self.pod(namespace, pod)
        if found is None:
            raise ClusterStateError(f"there is no pod {namespace}/{pod}")
        for status in found["status"].get("containerStatuses", []):
            if container in (None, status["name"]) and status.get("containerID"):
                group = self.node(found["spec"]["nodeName"]).group
                pids = cgroups.processes(group, status["containerID"].rpartition("/")[2])
                if pids:
                    return min(pids, key=processes.number_inside)
        raise ClusterStateError(f"pod {namespace}/{pod} has no running container {container or ''}")

    def unplug_pod(self, namespace: str, pod: str, plugged: bool = False) -> None:
        """Make all packets of one pod vanish; with plugged=True they flow again."""
        found = self.pod(namespace, pod)
        if found is None:
            raise ClusterStateError(f"there is no pod {namespace}/{pod}")
        self.node(found["spec"]["nodeName"]).unplug_pod(found["status"]["podIP"], plugged)

    def create_namespace(self, name: str, labels: dict[str, str] | None = None) -> None:
        """Make a namespace and wait until pods can be created in it."""
        self.api.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels or {}}})
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        eventually(lambda: self._exists(account), f"namespace {name} has its service account", 30, 0.05)

    def delete_namespace(self, name: str) -> None:
        """Remove a namespace; its pods are gone when this returns, the rest follows."""
        self.api.delete(f"/api/v1/namespaces/{name}")
        eventually(lambda: self._no_pods(name), f"the pods of namespace {name} are gone", 120)

    def _no_pods(self, namespace: str) -> bool:
        # Again and again: a controller may have made one more just before its owner went.
        self.api.delete(pod_path(namespace), grace=0)
        return not self.pods(namespace)

    def _exists(self, path: str) -> bool:
        try:
            self.api.get(path)
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    # --- images ---

    def has_image(self, image_id: str) -> bool:
        """Whether all nodes have an image, by the id of its configuration (sha256:... or without)."""
        wanted = image_id.removeprefix("sha256:")
        return all(
            wanted in node.machine.run("ctr", "-n", "k8s.io", "content", "ls", "-q")
            for node in self.nodes.values()
        )

    def load(self, archive: Path, names: list[str]) -> None:
        """Give the images of an archive to the nodes that are up."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda node: node.load(archive, names), self.nodes.values()))

    # --- faults of the API ---

    @contextmanager
    def faults(self) -> Iterator[FaultProxy]:
        """A proxy in front of the API server that misbehaves on rules.

        `faults.kubeconfig` leads through it, and so does the Service "kubernetes" for all pods, as long as
        the block lasts. Programs of the control plane and kubelets are not affected.
        """
        with FaultProxy(self.api, self.run) as proxy:
            if self.control is not None:
                port = proxy.listen(self.control.in_network, network.CONTROL)
                self.point_service_at(network.CONTROL, port)
                self._wait_until_pods_reach(proxy)
            try:
                yield proxy
            finally:
                if self.control is not None:
                    self.point_service_at(self.state.host, self.state.api_port)

    def _wait_until_pods_reach(self, proxy: FaultProxy) -> None:
        """Who kills the API server next would otherwise keep the nodes' kube-proxies from hearing of it."""
        for node in self.nodes.values():
            if node.machine.running:
                reached = partial(proxy.is_reached, node.machine.in_network, network.API_SERVICE)
                eventually(reached, f"pods of {node.name} reach the API server through the proxy")

    def point_service_at(self, host: str, port: int) -> None:
        """Say where the Service "kubernetes" leads, that is: where pods find the API server."""
        if self.control is None:
            return  # loopback is no address for an endpoint, and there are no pods to use it
        collection = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
        wanted = controlplane.api_endpoints(host, port)
        if self._exists(f"{collection}/kubernetes"):
            self.api.patch(f"{collection}/kubernetes", wanted)
        else:
            self.api.create(collection, wanted)

    # --- repair ---

    def restore(self) -> None:
        """Undo what was done to parts of the cluster: all run, are connected and Ready when this returns."""
        for part in self.components.values():
            part.thaw()
            part.start()
        self.wait_for_api()
        for node in self.nodes.values():
            node.restore()
        self.wait_for_nodes()


def _lock(run: Path) -> Path:
    return run.parent / f"{run.name}.lock"


def _sweep(run: Path) -> None:
    """Remove every trace of a cluster, whatever is left of it."""
    if os.geteuid() == 0:
        for root in cgroups.hierarchies():
            for directory in (root / cgroups.top(run)).glob("*"):
                if directory.is_dir():
                    cgroups.set_frozen(f"{cgroups.top(run)}/{directory.name}", False)
    processes.end_all(run)
    if os.geteuid() == 0:
        cgroups.remove(cgroups.top(run))
    if run.exists():
        shutil.rmtree(run)


def _free_ports() -> tuple[int, int, int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    first, second, third = (int(each.getsockname()[1]) for each in sockets)
    for each in sockets:
        each.close()
    return first, second, third


def guard(name: str) -> Any:
    """Start a process that takes the cluster down when this one ends, however it ends.

    The returned handle keeps it waiting: a pipe that the kernel closes with this process.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "kubelab", "guard", "--name", name],
        stdin=subprocess.PIPE,
        cwd=places.PACKAGE.parent,
        start_new_session=True,
    )
