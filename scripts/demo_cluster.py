"""`make demo-cluster`: the GKE guide on two real nodes of this machine, while you watch.

Four workers train handwritten digits. One is deleted; then a service of high priority takes the room of three
of them; then it gives the room back. At the end the audit says whether a step or a record was lost.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp

from kubelab import eventually
from kubelab.cluster import Cluster
from kubelab.errors import KubelabError
from kubelab.images import BUSYBOX

ROOT = Path(__file__).resolve().parent.parent
CLUSTER = "demo"
NAMESPACE = "default"
JOB = "test-mnist"
TAG = "elasticdl/elasticdl:dev"
IMAGE = f"docker.io/{TAG}"
MODEL = ROOT / "model_zoo" / "digits" / "mlp.py"
SELECTOR = f"elasticdl-job-name={JOB},elasticdl-replica-type=worker"

PACE = '''

class Pace(keras.callbacks.Callback):
    """Slow enough to watch."""

    def on_train_batch_end(self, batch, logs=None):
        import time

        time.sleep(0.2)


def callbacks():
    return [Pace()]
'''


def main() -> int:
    """Run it; returns 0 when nothing was lost."""
    say("starting a cluster of two nodes and giving it the image (the first time takes minutes)")
    build = [sys.executable, str(ROOT / "docker" / "build"), "--tag", TAG]
    subprocess.run([*build, "--load"], check=True)
    cluster = Cluster.up(CLUSTER)
    directory = Path(mkdtemp(prefix="elasticdl-demo-"))
    try:
        subprocess.run([*build, "--name", CLUSTER], check=True)
        prepare(cluster, directory)
        story = threading.Thread(target=tell_story, args=(cluster,), daemon=True)
        story.start()
        code = submit(cluster, directory)
        verdict = subprocess.run(
            [sys.executable, "-m", "edl_allreduce.cli", "audit", f"--audit_dir={directory / 'audit'}"],
            cwd=ROOT,
            check=False,
        )
        return code or verdict.returncode
    finally:
        cluster.down()
        shutil.rmtree(directory, ignore_errors=True)


def prepare(cluster: Cluster, directory: Path) -> None:
    """Rights, priorities, model and data; both nodes share this machine's disk."""
    for name in ("elasticdl-rbac", "high", "low"):
        cluster.kubectl("apply", "-n", NAMESPACE, "-f", str(ROOT / "manifests" / f"{name}.yaml"))
    (directory / "zoo").mkdir()
    (directory / "zoo" / "digits.py").write_text(MODEL.read_text() + PACE)
    make = ["data", "make", "digits", str(directory), "--format=npy"]
    subprocess.run([sys.executable, "-m", "edl_allreduce.cli", *make], cwd=ROOT, check=True)
    for path in (directory, *directory.rglob("*")):
        path.chmod(0o777)  # pods run as a user of their own


def submit(cluster: Cluster, directory: Path) -> int:
    """What a person types, with --follow: the live table until the job is over."""
    argv = [
        "train", f"--job_name={JOB}", f"--namespace={NAMESPACE}", f"--image_name={IMAGE}",
        "--image_pull_policy=IfNotPresent", "--model_zoo=/data/zoo", "--model_def=digits.custom_model",
        "--training_data=/data/digits/train", "--num_workers=4", "--minibatch_size=16", "--num_epochs=15",
        "--master_resource_request=cpu=0.1,memory=256Mi", "--master_resource_limit=cpu=2,memory=1Gi",
        "--worker_resource_request=cpu=0.6,memory=256Mi", "--worker_resource_limit=cpu=2,memory=2Gi",
        "--master_pod_priority=high", "--worker_pod_priority=low", "--audit_dir=/data/audit",
        "--output=/data/out", f"--volume=host_path={directory},mount_path=/data", "--follow",
    ]  # fmt: skip
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    return subprocess.run(
        [sys.executable, "-m", "edl_allreduce.cli", *argv], cwd=ROOT, env=environment, check=False
    ).returncode


def tell_story(cluster: Cluster) -> None:
    """What the guide does by hand."""
    pause = threading.Event()
    wait(lambda: running(cluster) == 4, "four workers run")
    pause.wait(30)
    cluster.kubectl("delete", "pod", "-n", NAMESPACE, f"elasticdl-{JOB}-worker-0", "--wait=false")
    pause.wait(30)
    cluster.apply(service(), namespace=NAMESPACE)
    wait(lambda: running(cluster) == 1, "three workers gave way")
    pause.wait(20)
    cluster.kubectl("scale", "-n", NAMESPACE, "deployment.v1.apps/test-nginx", "--replicas=1")


def running(cluster: Cluster) -> int:
    pods = cluster.pods(NAMESPACE, SELECTOR)
    alive = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    return sum(pod["status"].get("phase") == "Running" for pod in alive)


def wait(condition: Callable[[], bool], what: str) -> None:
    eventually(condition, what, 600)


def service() -> dict[str, object]:
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
            "replicas": 5,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def say(text: str) -> None:
    print(f"demo: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (KubelabError, subprocess.CalledProcessError) as error:
        print(f"demo: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
