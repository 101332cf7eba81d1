"""A real Kueue beside a control plane: its program, CRDs and webhooks, built from its Go module.

Root is needed: Kueue wants a certificate below /etc, which it gets in a mount namespace of its own.
"""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from kubelab import binaries, eventually
from kubelab.cluster import Cluster
from kubelab.errors import ApiError

SERVED = ("/mutate--v1-pod", "/validate--v1-pod", "-kueue-x-k8s-io-")
"""Webhooks of the integrations that are switched on here."""
CONVERTED = ("localqueues", "clusterqueues", "cohorts", "workloads", "multikueueclusters")
START = """\
mkdir upper work
mount -t overlay overlay -o lowerdir=/etc,upperdir=upper,workdir=work /etc
mkdir -p /etc/kueue/metrics/certs && cp tls.crt tls.key /etc/kueue/metrics/certs
exec {program} --config=config.yaml --kubeconfig=kubeconfig --feature-gates=VisibilityOnDemand=false
"""
GROUP = "/apis/kueue.x-k8s.io/v1beta2"


@contextmanager
def beside(cluster: Cluster, directory: Path, port: int, cpus: int) -> Iterator[None]:
    """Kueue that manages pods, and a queue `team` in no namespace yet; it listens on loopback only."""
    ca = _certificate(directory)
    _resources(cluster, port, ca)
    config = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration",
        "health": {"healthProbeBindAddress": "127.0.0.1:0"}, "metrics": {"bindAddress": "127.0.0.1:0"},
        "webhook": {"port": port, "host": "127.0.0.1", "certDir": str(directory)},
        "leaderElection": {"leaderElect": False}, "internalCertManagement": {"enable": False},
        "integrations": {"frameworks": ["pod"]},
    }  # fmt: skip
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    (directory / "kubeconfig").write_bytes(cluster.kubeconfig.read_bytes())
    argv = ["unshare", "--mount", "sh", "-ec", START.format(program=binaries.program("kueue"))]
    with (directory / "kueue.log").open("w") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=directory)
    try:
        eventually(lambda: _has_queue(cluster, cpus, process, directory), "Kueue takes a queue", 90)
        yield
    finally:
        process.terminate()
        process.wait(30)
        for kind in ("mutating", "validating"):
            name = f"kueue-{kind}-webhook-configuration"
            cluster.kubectl("delete", f"{kind}webhookconfiguration", name)
        cluster.kubectl("delete", "-f", str(cluster.run / "kueue-crds.yaml"), "--wait=false")


def local_queue(namespace: str) -> dict:
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue",
        "metadata": {"name": "team", "namespace": namespace}, "spec": {"clusterQueue": "all"},
    }  # fmt: skip


def _certificate(directory: Path) -> str:
    """Of a server on loopback, signed by itself; returns it as the API server wants it."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=kueue",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "tls.key", "-out", "tls.crt"],
        cwd=directory, check=True, capture_output=True,
    )  # fmt: skip
    return base64.b64encode((directory / "tls.crt").read_bytes()).decode()


def _resources(cluster: Cluster, port: int, ca: str) -> None:
    def there(path: str) -> dict:
        return {"url": f"https://127.0.0.1:{port}{path}", "caBundle": ca}

    crds = [yaml.safe_load(file.read_text()) for file in binaries.files("kueue", "crds")]
    for crd in crds:
        if crd["spec"]["names"]["plural"] in CONVERTED:
            webhook = {"clientConfig": there("/convert"), "conversionReviewVersions": ["v1"]}
            crd["spec"]["conversion"] = {"strategy": "Webhook", "webhook": webhook}
    (manifests,) = binaries.files("kueue", "webhooks")
    hooks = list(yaml.safe_load_all(manifests.read_text()))
    for kind, found in zip(("mutating", "validating"), hooks, strict=True):
        found["metadata"]["name"] = f"kueue-{kind}-webhook-configuration"
        kept = []
        for one in found["webhooks"]:
            path = one["clientConfig"]["service"]["path"]
            if any(part in path for part in SERVED):
                one["clientConfig"] = there(path)
                if path.endswith("--v1-pod"):  # the programs of the cluster itself are nobody's queue
                    one["objectSelector"] = {
                        "matchExpressions": [{"key": "kueue.x-k8s.io/queue-name", "operator": "Exists"}]
                    }
                kept.append(one)
        found["webhooks"] = kept
    file = cluster.run / "kueue-crds.yaml"
    file.write_text(yaml.safe_dump_all(crds))
    cluster.kubectl("apply", "--server-side", "-f", str(file))
    for crd in crds:
        eventually(lambda crd=crd: _served(cluster, crd), f"{crd['metadata']['name']} is served", 60)
    hooks_file = cluster.run / "kueue-hooks.yaml"
    hooks_file.write_text(yaml.safe_dump_all(hooks))
    cluster.kubectl("apply", "--server-side", "-f", str(hooks_file))


def _served(cluster: Cluster, crd: dict) -> bool:
    try:
        cluster.api.get(f"{GROUP}/{crd['spec']['names']['plural']}")
    except ApiError:
        return False
    return True


def _has_queue(cluster: Cluster, cpus: int, process: subprocess.Popen[bytes], directory: Path) -> bool:
    assert process.poll() is None, (directory / "kueue.log").read_text()[-3000:]
    resources = [{"name": "cpu", "nominalQuota": cpus}, {"name": "memory", "nominalQuota": "1Ti"}]
    queue = {
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": "all"},
        "spec": {
            "namespaceSelector": {},
            "preemption": {"withinClusterQueue": "LowerPriority"},
            "resourceGroups": [{
                "coveredResources": ["cpu", "memory"],
                "flavors": [{"name": "plain", "resources": resources}],
            }],
        },
    }  # fmt: skip
    flavor = {
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "plain"},
        "spec": {"tolerations": [{"key": "kubelab/hollow", "operator": "Exists"}]},
    }  # fmt: skip
    for collection, made in (("resourceflavors", flavor), ("clusterqueues", queue)):
        try:
            cluster.api.create(f"{GROUP}/{collection}", made)
        except ApiError as error:
            if error.status != 409:
                return False
    conditions = cluster.api.get(f"{GROUP}/clusterqueues/all").get("status", {}).get("conditions") or []
    return any(one["type"] == "Active" and one["status"] == "True" for one in conditions)
