"""The programs of the control plane and their settings."""

from __future__ import annotations

import json
from pathlib import Path

from kubelab import binaries, network, pki
from kubelab.machines import Component, Machine
from kubelab.state import Kind, State

# A cluster of tests is in a hurry: the default limits of 20 to 50 requests a second would be the bottleneck.
_NO_LIMIT = ("--kube-api-qps=1000", "--kube-api-burst=2000")


def write_credentials(run: Path, state: State) -> None:
    """Certificates, tokens and kubeconfigs of the control plane."""
    directory = run / "pki"
    names = ["DNS:localhost", "DNS:kubernetes", "DNS:kubernetes.default", "DNS:kubernetes.default.svc"]
    addresses = {"127.0.0.1", network.API_SERVICE, state.host}
    pki.certificate(
        directory,
        "apiserver",
        "/CN=kube-apiserver",
        [*names, *(f"IP:{address}" for address in sorted(addresses))],
    )
    for name, subject in (
        ("kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet-client"),
        ("scheduler", "/CN=system:kube-scheduler"),
        ("manager", "/CN=system:kube-controller-manager"),
        ("cluster-admin", "/O=system:masters/CN=kubelab"),
    ):
        pki.certificate(directory, name, subject, [f"DNS:{name}"])
        client_kubeconfig(run, state, name)
    pki.kubeconfig(
        run / "kubeconfig", state.server, directory / "ca.crt", {"token": state.token}, f"kubelab-{run.name}"
    )


def client_kubeconfig(run: Path, state: State, name: str) -> Path:
    """Write the kubeconfig of a program inside the cluster that has a certificate of this name."""
    file = run / "pki" / f"{name}.kubeconfig"
    user = {
        "client-certificate": str(run / "pki" / f"{name}.crt"),
        "client-key": str(run / "pki" / f"{name}.key"),
    }
    pki.kubeconfig(file, f"https://{state.host}:{state.api_port}", run / "pki" / "ca.crt", user, "kubelab")
    return file


def components(run: Path, state: State, machine: Machine | None) -> dict[str, Component]:
    """The control plane's programs, in the order in which they start."""
    keys = run / "pki"
    etcd = f"http://127.0.0.1:{state.etcd_port}"
    peers = f"http://127.0.0.1:{state.peer_port}"
    parts = {
        "etcd": [
            f"--data-dir={run / 'etcd'}",
            *(f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}"),
            *(f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}"),
            f"--initial-cluster=default={peers}",
            "--unsafe-no-fsync",  # nothing here needs to survive a power cut of the real machine
        ],
        "kube-apiserver": [
            f"--etcd-servers={etcd}",
            *(f"--bind-address={state.host}", f"--secure-port={state.api_port}"),
            *(f"--advertise-address={state.host}", f"--service-cluster-ip-range={network.SERVICES}"),
            # The Service "kubernetes" is pointed by us, so that a test can put a proxy there.
            "--endpoint-reconciler-type=none",
            *(
                f"--tls-cert-file={keys / 'apiserver.crt'}",
                f"--tls-private-key-file={keys / 'apiserver.key'}",
            ),
            *(f"--client-ca-file={keys / 'ca.crt'}", f"--token-auth-file={keys / 'tokens.csv'}"),
            f"--service-account-key-file={keys / 'sa.pub'}",
            f"--service-account-signing-key-file={keys / 'sa.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            *("--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"),
            "--allow-privileged=true",
            f"--kubelet-client-certificate={keys / 'kubelet-client.crt'}",
            f"--kubelet-client-key={keys / 'kubelet-client.key'}",
            f"--kubelet-certificate-authority={keys / 'ca.crt'}",
            "--kubelet-preferred-address-types=InternalIP",
        ],
        "kube-scheduler": [
            f"--kubeconfig={keys / 'scheduler.kubeconfig'}",
            *("--leader-elect=false", "--secure-port=0", *_NO_LIMIT),
        ],
        "kube-controller-manager": [
            f"--kubeconfig={keys / 'manager.kubeconfig'}",
            *("--leader-elect=false", "--secure-port=0", *_NO_LIMIT, "--use-service-account-credentials"),
            *(f"--service-account-private-key-file={keys / 'sa.key'}", f"--root-ca-file={keys / 'ca.crt'}"),
            *(f"--node-monitor-grace-period={state.node_grace}s", "--node-monitor-period=1s"),
        ],
    }
    if state.kind is Kind.REAL:
        parts["coredns"] = ["-conf", str(run / "Corefile")]
    if state.hollow:
        parts["kwok"] = _kwok(run, state)
    return {
        name: Component(name, run, [str(binaries.program(name)), *arguments], machine)
        for name, arguments in parts.items()
    }


def write_corefile(run: Path) -> None:
    """The DNS server answers for Services and pods, for nothing outside, and from no cache."""
    (run / "Corefile").write_text(
        f""".:53 {{
  bind {network.DNS}
  errors
  kubernetes cluster.local in-addr.arpa {{
    kubeconfig {run / "pki" / "cluster-admin.kubeconfig"} kubelab
    ttl 1
  }}
}}
"""
    )


def write_stages(run: Path) -> None:
    """KWOK's rules: nodes are ready, pods run, pods of Jobs complete, deleted pods go."""
    texts = [file.read_text() for file in binaries.files("kwok", "stages")]
    (run / "stages.yaml").write_text("\n---\n".join(texts))


def _kwok(run: Path, state: State) -> list[str]:
    # A lease is renewed every quarter of its duration; twice the grace period renews at half of it.
    lease = min(40, 2 * state.node_grace)
    return [
        *(f"--kubeconfig={run / 'pki' / 'cluster-admin.kubeconfig'}", f"--config={run / 'stages.yaml'}"),
        *("--manage-all-nodes=false", "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake"),
        *(f"--node-lease-duration-seconds={lease}", "--cidr=10.77.0.0/16"),
    ]


def hollow_node(name: str, cpu: int, memory_gib: int, labels: dict[str, str], pods: int) -> dict[str, object]:
    """The object of a node that is kept alive by KWOK. Real work is kept off it by a taint."""
    capacity = {"cpu": str(cpu), "memory": f"{memory_gib}Gi", "pods": str(pods)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {"kubernetes.io/hostname": name, "type": "hollow", **labels},
        },
        "spec": {"taints": [{"key": "kubelab/hollow", "effect": "NoSchedule"}]},
        "status": {"capacity": capacity, "allocatable": capacity},
    }


def api_endpoints(host: str, port: int) -> dict[str, object]:
    """Where the Service "kubernetes" leads."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "kubernetes",
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": "kubernetes"},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [host], "conditions": {"ready": True}}],
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    }


def dump(value: object) -> str:
    """JSON, which is YAML enough for every program here."""
    return json.dumps(value, indent=1)
