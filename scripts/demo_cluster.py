"""`make demo-cluster`: the GKE guide on two real nodes of this machine, while you watch.

Four workers train handwritten digits. One is deleted; then a service of high priority takes the room of three
of them; then it gives the room back. At the end the audit says whether a step or a record was lost.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from edl_allreduce import outside
from edl_allreduce.cli.status import current
from edl_allreduce.cluster.kubernetes.finding import find_job
from edl_allreduce.cluster.kubernetes.remote import ClusterJob
from edl_allreduce.core.event_data import from_data
from edl_allreduce.core.events import RingPlanned, RingReformed
from edl_allreduce.core.health import Activity
from edl_allreduce.core.status import EventRecord, JobStatus
from edl_allreduce.errors import EdlError
from edl_allreduce.master.display import render
from edl_allreduce.worker.loop.diary import audit
from kubelab.cluster import Cluster, guard
from kubelab.errors import KubelabError
from kubelab.images import BUSYBOX

ROOT = Path(__file__).resolve().parent.parent
CLUSTER = f"demo-{os.getpid()}"
NAMESPACE = "default"
JOB = "test-mnist"
TAG = "elasticdl/elasticdl:dev"
IMAGE = f"docker.io/{TAG}"
MODEL = ROOT / "model_zoo" / "digits" / "mlp.py"
REPORT = ROOT / "build" / "demo-cluster-report.html"
LOOK_SECONDS = 0.5
SETTLED_STEPS = 40
"""Steps between two things that happen."""
LONGEST_SCENE = 300.0

PACE = '''

class Pace(keras.callbacks.Callback):
    """Slow enough to watch."""

    def on_train_batch_end(self, batch, logs=None):
        import time

        time.sleep(0.1)


def callbacks():
    return [Pace()]
'''


@dataclass(frozen=True)
class Scene:
    """Something that is done, and when it is over."""

    command: str
    about: str
    act: Callable[[], object]
    ring: int
    """It is over when a new ring of so many workers has trained for a while."""


def main() -> int:
    """Run it; returns 0 when nothing was lost."""
    say("building the image (minutes the first time) and starting a cluster of two nodes")
    subprocess.run([sys.executable, str(ROOT / "docker" / "build"), "--tag", TAG, "--load"], check=True)
    watchman = guard(CLUSTER)  # takes the cluster down even if this process is killed
    try:
        cluster = Cluster.up(CLUSTER)
        os.environ["KUBECONFIG"] = str(cluster.kubeconfig)
        directory = cluster.run / "demo"  # goes with the cluster
        directory.mkdir()
        prepare(cluster, directory)
        elasticdl(*train(directory))
        job = find_job(NAMESPACE, JOB)
        play(cluster, job)
        named = (f"--job_name={JOB}", f"--namespace={NAMESPACE}")
        REPORT.parent.mkdir(exist_ok=True)
        elasticdl("report", *named, f"--file={REPORT}")
        elasticdl("stop", *named)
        code = report(directory, job.events())
        say(f"the report is in {REPORT}; `elasticdl dashboard` opens the page of a job that runs")
        return code
    finally:
        say("taking the cluster down")
        watchman.communicate()


def prepare(cluster: Cluster, directory: Path) -> None:
    """Rights, priorities, model and data; both nodes share this machine's disk."""
    for name in ("elasticdl-rbac", "high", "low"):
        cluster.kubectl("apply", "-n", NAMESPACE, "-f", str(ROOT / "manifests" / f"{name}.yaml"))
    (directory / "zoo").mkdir()
    (directory / "zoo" / "digits.py").write_text(MODEL.read_text() + PACE)
    elasticdl("data", "make", "digits", str(directory), "--format=npy")
    for path in (directory, *directory.rglob("*")):
        path.chmod(0o777)  # pods run as a user of their own


def train(directory: Path) -> list[str]:
    return [
        "train", f"--job_name={JOB}", f"--namespace={NAMESPACE}", f"--image_name={IMAGE}",
        "--image_pull_policy=IfNotPresent", "--model_zoo=/data/zoo", "--model_def=digits.custom_model",
        "--training_data=/data/digits/train", "--num_workers=4", "--minibatch_size=16", "--num_epochs=1000",
        "--master_resource_request=cpu=0.1,memory=256Mi", "--master_resource_limit=cpu=2,memory=1Gi",
        "--worker_resource_request=cpu=0.6,memory=256Mi", "--worker_resource_limit=cpu=2,memory=2Gi",
        "--master_pod_priority=high", "--worker_pod_priority=low", "--audit_dir=/data/audit",
        "--output=/data/out", f"--volume=host_path={directory},mount_path=/data",
    ]  # fmt: skip


def elasticdl(*arguments: str) -> None:
    """What a person types."""
    say("elasticdl " + " ".join(arguments))
    subprocess.run([sys.executable, "-m", "edl_allreduce.cli", *arguments], cwd=ROOT, check=True)


# ------------------------------------------------------------------------------------------------ the play


def scenes(cluster: Cluster) -> list[Scene]:
    """What the guide does by hand."""
    pod = f"elasticdl-{JOB}-worker-0"
    scale = ("scale", "-n", NAMESPACE, "deployment.v1.apps/test-nginx", "--replicas=1")
    return [
        Scene("elasticdl train …", "four workers start and form a ring", lambda: None, 4),
        Scene(
            f"kubectl delete pod {pod}",
            "the three others train on; worker 4 appears at once and joins them",
            lambda: cluster.kubectl("delete", "pod", "-n", NAMESPACE, pod, "--wait=false"),
            4,
        ),
        Scene(
            "kubectl create -f nginx.yaml",
            "five service pods of high priority: three workers give way, their replacements wait for room",
            lambda: cluster.apply(service(), namespace=NAMESPACE),
            1,
        ),
        Scene(
            "kubectl scale deployment.v1.apps/test-nginx --replicas=1",
            "the service gives room back: the waiting workers run and join",
            lambda: cluster.kubectl(*scale),
            4,
        ),
    ]


def play(cluster: Cluster, job: ClusterJob) -> None:
    """One scene after the other."""
    console = outside.console()
    pause = threading.Event()
    generation = 0
    done: list[str] = []
    with Live(console=console, auto_refresh=False) as live:
        for scene in scenes(cluster):
            done.append(f"$ {scene.command}\n    {scene.about}")
            if not console.is_terminal:
                say(f"{scene.command}: {scene.about}")
            scene.act()
            first: int | None = None
            for _ in range(int(LONGEST_SCENE / LOOK_SECONDS)):
                pause.wait(LOOK_SECONDS)
                try:
                    status = current(job)
                except EdlError:
                    continue  # the master is on its way
                live.update(picture(done, cluster, status), refresh=True)
                if status.generation <= generation or ring(status) != scene.ring:
                    first = None
                    continue
                first = status.step if first is None else first
                if status.step >= first + SETTLED_STEPS:
                    break
            else:
                story = f"did not happen within {LONGEST_SCENE:.0f} s; {outside.line(status)}"
                raise KubelabError(f"{scene.about}: {story}")
            generation = status.generation


def ring(status: JobStatus) -> int:
    training = (Activity.COMPUTING, Activity.REDUCING)
    return sum(worker.rank >= 0 and worker.activity in training for worker in status.workers)


def picture(done: list[str], cluster: Cluster, status: JobStatus) -> RenderableType:
    text = Text("\n".join(done[:-1]), style="dim")
    text.append("\n" * bool(done[:-1]) + done[-1], style="bold")
    return Group(Panel(text, title="what happens", title_align="left"), pods(cluster), render(status))


def pods(cluster: Cluster) -> Table:
    """`kubectl get pods -o wide`, in short."""
    colours = {"Running": "green", "Pending": "yellow", "Terminating": "red"}
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for column in ("pod", "phase", "node"):
        table.add_column(column)
    for pod in cluster.pods(NAMESPACE):
        leaving = "deletionTimestamp" in pod["metadata"]
        phase = "Terminating" if leaving else pod["status"].get("phase", "Pending")
        node = pod["spec"].get("nodeName", "")
        name = outside.name(pod["metadata"]["name"])
        table.add_row(name, Text(phase, style=colours.get(phase, "dim")), outside.name(node))
    return table


def service(replicas: int = 5) -> dict[str, object]:
    """manifests/nginx.yaml at the size of this machine, and without a download."""
    container = {
        "name": "nginx",
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", "trap 'exit 0' TERM; sleep 10000 & wait"],
        "resources": {"requests": {"cpu": "0.6", "memory": "16Mi"}},
    }
    labels = {"app": "nginx"}
    pod = {"priorityClassName": "high", "terminationGracePeriodSeconds": 1, "containers": [container]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "test-nginx"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def what_happened(records: list[EventRecord]) -> Table:
    """The rings with their reasons and pauses."""
    table = Table(title="What happened, and how long the survivors paused", title_justify="left")
    for column in ("ring", "workers", "because", "pause"):
        table.add_column(column, justify="right" if column in ("ring", "pause") else "left")
    told = [from_data(record.event) for record in records]
    for ring in (event for event in told if isinstance(event, RingPlanned)):
        reforms = [e for e in told if isinstance(e, RingReformed) and e.generation == ring.generation]
        pause = max((reform.pause for reform in reforms), default=None)
        workers = ", ".join(map(str, ring.workers))
        shown = "" if pause is None else f"{pause:.2f} s"
        table.add_row(str(ring.generation), workers, outside.line(ring.reason), shown)
    return table


def report(directory: Path, events: list[EventRecord]) -> int:
    """What became of the rings, the steps and the records."""
    console = outside.console()
    console.print(what_happened(events))
    verdict = audit(str(directory / "audit"))
    console.print(f"Audit: {outside.line(verdict)}", style="green" if verdict.clean else "red")
    return 0 if verdict.clean else 1


def say(text: str) -> None:
    print(f"demo: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (KubelabError, EdlError, subprocess.CalledProcessError) as error:
        print(f"demo: {outside.story(error)}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
