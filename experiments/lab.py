"""A control plane with hollow nodes, TrainingJobs, and a controller: what an experiment runs on.

API server, scheduler, controller manager and our controller are the real programs. KWOK keeps the nodes alive
and says that pods run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from edl_allreduce.cluster.kubernetes.names import Object
from edl_allreduce.errors import UsageError
from edl_allreduce.spec import parse_job
from edl_allreduce.spec.resource import to_object
from kubelab import Cluster, eventually
from kubelab.cluster import guard
from kubelab.errors import ApiError
from kubelab.state import Kind

ROOT = Path(__file__).resolve().parents[1]
NAMESPACE = "experiment"
SYSTEM = "elasticdl-system"
TOLERATIONS = [{"key": "kubelab/hollow", "operator": "Exists"}]
POD_SECONDS = 1.0
"""From a bound pod to one that runs, and from the order to end to its end; KWOK alone needs no time."""
STAGES = ("pod-ready", "pod-delete")
ENDS_WITH_US = '"$@" & cat > /dev/null; kill $!; wait $!'
"""A shell's program: the kernel closes our end of the pipe that it reads when we end, however that is."""


@dataclass(frozen=True)
class Nodes:
    """How many of one size."""

    count: int
    cpu: int


PUBLISHED = (Nodes(120, 16), Nodes(13, 32))
"""133 nodes with 2,336 CPUs. Published are 133 and about 2,340; the sizes of the single ones are not."""


def cpus(nodes: tuple[Nodes, ...]) -> int:
    return sum(one.count * one.cpu for one in nodes)


def parse_nodes(text: str) -> tuple[Nodes, ...]:
    """120x16,13x32 is what is published, as far as it is."""
    found = []
    for part in text.split(","):
        count, _, cpu = part.partition("x")
        if not (count.isdecimal() and cpu.isdecimal() and int(count) and int(cpu)):
            raise UsageError(
                f"--nodes={text}: expected how many of which size, such as 120x16,13x32; got {part!r}."
            )
        found.append(Nodes(int(count), int(cpu)))
    return tuple(found)


@contextmanager
def control_plane(nodes: tuple[Nodes, ...]) -> Iterator[Cluster]:
    """A cluster of its own that is gone afterwards, also when this process is killed."""
    name = f"experiment-{os.getpid()}"
    with guard(name):
        cluster = Cluster.up(name, kind=Kind.HOLLOW, hollow=True)
        try:
            slow_down(cluster)
            furnish(cluster, nodes)
            yield cluster
        finally:
            cluster.down()


def furnish(cluster: Cluster, nodes: tuple[Nodes, ...]) -> None:
    """Nodes, TrainingJobs, a namespace in which jobs may run."""
    for number, one in enumerate(nodes):
        cluster.add_hollow_nodes(one.count, prefix=f"size-{number}", cpu=one.cpu, memory_gib=4 * one.cpu)
    manifests = ROOT / "manifests"
    cluster.kubectl("apply", "--server-side", "-f", str(manifests / "crd" / "trainingjob.yaml"))
    eventually(lambda: _served(cluster), "TrainingJobs are served", 60)
    cluster.kubectl("apply", "-f", str(manifests / "controller" / "namespace.yaml"))
    cluster.create_namespace(NAMESPACE)
    cluster.apply(SERVICES)
    cluster.kubectl("apply", "-n", NAMESPACE, "-f", str(manifests / "elasticdl-rbac.yaml"))


def _served(cluster: Cluster) -> bool:
    try:
        cluster.api.get("/apis/elasticdl.org/v1/trainingjobs")
    except ApiError as error:
        if error.status not in (404, 429, 503):
            raise
        return False
    return True


def slow_down(cluster: Cluster) -> None:
    """Pods begin and end as fast as on real nodes, not faster."""
    path = cluster.run / "stages.yaml"
    delay = f"  delay:\n    durationMilliseconds: {1000 * POD_SECONDS:.0f}\n"
    stages = path.read_text().split("\n---\n")
    changed = [
        stage.replace("  next:\n", f"{delay}  next:\n", 1)
        if any(f"name: {name}\n" in stage for name in STAGES)
        else stage
        for stage in stages
    ]
    path.write_text("\n---\n".join(changed))
    cluster.components["kwok"].restart()


def that_ends_with_us(argv: Sequence[str], out: IO[str]) -> subprocess.Popen[bytes]:
    """A process of its own session: Ctrl-C would end the shell that watches, and not what it watches."""
    return subprocess.Popen(
        ["sh", "-c", ENDS_WITH_US, "sh", *argv],
        stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True,
    )  # fmt: skip


@contextmanager
def controller(cluster: Cluster, out: Path, *flags: str) -> Iterator[None]:
    """The controller's own process; what it says is in a file. It ends with us, also when we are killed."""
    argv = [
        sys.executable, "-m", "edl_allreduce.controller", f"--kubeconfig={cluster.kubeconfig}",
        f"--namespace={SYSTEM}", "--port=0", "--host=127.0.0.1", *flags,
    ]  # fmt: skip
    with (out / "controller.log").open("w") as file:
        process = that_ends_with_us(argv, file)
        try:
            eventually(lambda: _leads(out / "controller.log"), "the controller leads", 120)
            yield
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(60)


def _leads(log: Path) -> bool:
    return "leads in term" in log.read_text()


@dataclass(frozen=True)
class Shape:
    """What the jobs of an experiment ask for."""

    least: int
    most: int
    cpu: int = 5
    memory_gib: int = 8


def training_job(name: str, shape: Shape) -> Object:
    flags = [
        f"--job_name={name}", "--image_name=example/mnist:1", "--model_def=mnist.model",
        "--training_data=/data",
        f"--num_workers={shape.most}", f"--min_workers={shape.least}", f"--namespace={NAMESPACE}",
        f"--worker_resource_request=cpu={shape.cpu},memory={shape.memory_gib}Gi",
        "--master_resource_request=cpu=1,memory=1Gi", "--master_pod_priority=services",
        "--failure_detection_seconds=30",
        f"--cluster_spec_json={json.dumps({'pod_spec': {'tolerations': TOLERATIONS}})}",
    ]  # fmt: skip
    return to_object(parse_job("train", flags).spec)


SERVICES: Object = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "services"},
    "value": 1000,
    "description": "what must never wait for training",
}


def deployment(name: str, replicas: int, cpu: int, memory_gib: int) -> Object:
    """A service. Its PriorityClass lets the scheduler preempt workers, whose grace period is a drain."""
    requests = {"cpu": str(cpu), "memory": f"{memory_gib}Gi"}
    container = {"name": name, "image": f"example/{name}:1", "resources": {"requests": requests}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "tolerations": TOLERATIONS,
                    "priorityClassName": SERVICES["metadata"]["name"],
                    "containers": [container],
                },
            },
        },
    }
