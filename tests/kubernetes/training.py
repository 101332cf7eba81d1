"""Real training in real pods: submit with the command that people type, and look at what became of it.

The image brings Python, TensorFlow and Horovod; the project's own code is mounted from this tree, so that a
change of it needs no new image. Both nodes share this machine's disk: a host path is a shared volume.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from edl_allreduce.cluster.kubernetes import names
from edl_allreduce.core.audit import Verdict
from edl_allreduce.worker.loop.diary import audit
from kubelab import eventually
from kubelab.cluster import Cluster
from kubelab.errors import ApiError

ROOT = Path(__file__).resolve().parents[2]
IMAGE = "docker.io/elasticdl/elasticdl:dev"
RECORDS = 600
MINIBATCH = 16
T = TypeVar("T")


@dataclass(frozen=True)
class Meanwhile:
    """A command that runs. It prints into a file: a pipe that nobody reads would be full some time."""

    process: subprocess.Popen[bytes]
    path: Path

    def said(self) -> str:
        """All that it printed, when it has ended well."""
        assert self.process.wait(timeout=120) == 0, self.path.read_text()
        return self.path.read_text()


class TrainingJob:
    """A job of paced digits in a namespace of its own."""

    def __init__(self, cluster: Cluster, namespace: str, directory: Path, name: str = "test-mnist") -> None:
        self.cluster, self.namespace, self.directory, self.name = cluster, namespace, directory, name
        self.epochs = 0
        self.workers = 0

    # --------------------------------------------------------------------------------------------- set-up

    def prepare(self) -> None:
        """Data, model and rights."""
        from sklearn.datasets import load_digits

        (self.directory / "zoo").mkdir(parents=True)
        (self.directory / "digits").mkdir()
        shutil.copy(Path(__file__).with_name("paced_digits.py"), self.directory / "zoo")
        x, y = load_digits(return_X_y=True)
        np.save(self.directory / "digits" / "x.npy", x[:RECORDS].astype("float32"))
        np.save(self.directory / "digits" / "y.npy", y[:RECORDS].astype("int64"))
        self.slow()
        for path in (self.directory, *self.directory.rglob("*")):
            path.chmod(0o777)  # pods run as a user of their own
        self.cluster.kubectl("apply", "-n", self.namespace, "-f", str(ROOT / "manifests/elasticdl-rbac.yaml"))
        for name in ("high", "low"):
            self.cluster.kubectl("apply", "-f", str(ROOT / f"manifests/{name}.yaml"))

    def slow(self) -> None:
        (self.directory / "slow").touch()

    def fast(self) -> None:
        (self.directory / "slow").unlink(missing_ok=True)

    # ------------------------------------------------------------------------------------------ the command

    def elasticdl(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self._command(arguments), env=self._environment, cwd=ROOT, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, done.stderr
        return done

    def elasticdl_meanwhile(self, *arguments: str) -> Meanwhile:
        """A command that takes as long as the job."""
        path = self.directory / f"{self.name}-{arguments[0]}.txt"
        with path.open("w") as file:
            return Meanwhile(
                subprocess.Popen(self._command(arguments), env=self._environment, cwd=ROOT, stdout=file), path
            )

    def _command(self, arguments: Iterable[str]) -> list[str]:
        return [sys.executable, "-m", "edl_allreduce.cli", *arguments]

    @property
    def _environment(self) -> dict[str, str]:
        return {**os.environ, "KUBECONFIG": str(self.cluster.kubeconfig)}

    @property
    def flags(self) -> list[str]:
        """Of any job."""
        mounts = [
            f"host_path={self.directory},mount_path=/data",
            f"host_path={ROOT / 'edl_allreduce'},mount_path=/live/edl_allreduce",
        ]
        return [
            *self.named, f"--image_name={IMAGE}", "--image_pull_policy=Never", "--model_zoo=/data/zoo",
            "--model_def=paced_digits.custom_model", f"--minibatch_size={MINIBATCH}",
            "--master_resource_request=cpu=0.1,memory=256Mi", "--master_resource_limit=cpu=2,memory=1Gi",
            "--worker_resource_request=cpu=0.6,memory=256Mi", "--worker_resource_limit=cpu=2,memory=2Gi",
            "--master_pod_priority=high", "--worker_pod_priority=low", f"--output=/data/out-{self.name}",
            f"--volume={';'.join(mounts)}", "--envs=PYTHONPATH=/live,PYTHONDONTWRITEBYTECODE=1",
        ]  # fmt: skip

    def training(self, workers: int, epochs: int, *more: str) -> list[str]:
        """The command that trains."""
        self.workers, self.epochs = workers, epochs
        return [
            "train", *self.flags, "--training_data=/data/digits",
            f"--num_workers={workers}", f"--num_epochs={epochs}", f"--audit_dir=/data/audit-{self.name}",
            "--log_loss_steps=10", "--cool_down_seconds=5", *more,
        ]  # fmt: skip

    def submit(self, workers: int, epochs: int, *more: str) -> None:
        self.elasticdl(*self.training(workers, epochs, *more))

    @property
    def named(self) -> tuple[str, str]:
        return f"--job_name={self.name}", f"--namespace={self.namespace}"

    # --------------------------------------------------------------------------------------------- looking

    def pod(self, worker_id: int) -> str:
        return names.worker_name(self.name, worker_id)

    @property
    def master(self) -> str:
        return names.master_name(self.name)

    def phases(self) -> dict[str, str]:
        """Phases of all worker pods by id; Terminating like kubectl."""
        pods = self.cluster.pods(self.namespace, names.selector(self.name, names.Replica.WORKER))
        return {
            pod["metadata"]["labels"][names.INDEX_LABEL]: "Terminating"
            if "deletionTimestamp" in pod["metadata"]
            else pod["status"].get("phase", "Pending")
            for pod in pods
        }

    def running(self) -> list[int]:
        return sorted(int(i) for i, phase in self.phases().items() if phase == "Running")

    def log(self, pod: str = "") -> str:
        try:
            return self.cluster.logs(self.namespace, pod or self.master)
        except ApiError as error:
            if error.status in (400, 404, 500):
                return ""  # its container is on its way, or its node does not answer
            raise

    def log_on(self, node: str, worker_id: int) -> str:
        """What a worker printed, from its node's disk: also when its pod is gone from the API server."""
        logs = self.cluster.node(node).directory / "pod-logs"
        found = logs.glob(f"{self.namespace}_{self.pod(worker_id)}_*/*/*.log")
        return "".join(path.read_text(errors="replace") for path in found)

    def goes_on(self, lines: int = 20) -> None:
        """Until so many lines were added to the workers' diaries; the API server is not asked."""

        def written() -> int:
            diaries = (self.directory / f"audit-{self.name}").glob("*.jsonl")
            return sum(path.read_bytes().count(b"\n") for path in diaries)

        before = written()
        eventually(lambda: written() >= before + lines, "training goes on", 120)

    def wait(self, find: Callable[[], T | None], what: str, timeout: float = 240.0) -> T:
        """Until something is so; a master that ended ends the waiting, too."""

        def look() -> T | None:
            found = find()
            if found:
                return found
            pod = self.cluster.pod(self.namespace, self.master)
            ended = pod is not None and pod["status"].get("phase") in ("Succeeded", "Failed")
            assert not ended, f"the job ended before {what}:\n{self.log()[-6000:]}"
            return None

        return eventually(look, what, timeout)

    def trains_with(self, *worker_ids: int) -> None:
        """Until the ring is made of exactly these workers and makes steps."""

        def ring() -> bool:
            plans = [line for line in self.log().splitlines() if "plan: generation" in line]
            wanted = f"workers {', '.join(map(str, worker_ids))}, because"
            return bool(plans) and _same_workers(plans[-1], wanted)

        self.wait(ring, f"the ring is made of {worker_ids}")
        steps = self.steps_of(worker_ids[0])
        self.wait(lambda: self.steps_of(worker_ids[0]) > steps, "it makes steps")

    def steps_of(self, worker_id: int) -> int:
        """The last step that a worker has logged."""
        lines = [line for line in self.log(self.pod(worker_id)).splitlines() if "Loss = " in line]
        return int(lines[-1].split("steps = ")[1].split()[0]) if lines else 0

    def audit(self) -> Verdict:
        return audit(str(self.directory / f"audit-{self.name}"))

    def ends_well(self) -> Verdict:
        """To the last step, and nothing was lost on the way."""
        self.fast()
        done = eventually(
            lambda: (
                self.cluster.pod(self.namespace, self.master)["status"]["phase"] in ("Succeeded", "Failed")
            ),
            "the job ends",
            300,
        )
        assert done
        pod = self.cluster.pod(self.namespace, self.master)
        assert pod["status"]["phase"] == "Succeeded", self.log()[-6000:]
        assert pod["metadata"]["labels"]["status"] == "Finished"
        verdict = self.audit()
        assert verdict.clean, f"{verdict}\n{self.log()[-6000:]}"
        steps = self.epochs * -(-RECORDS // (MINIBATCH * self.workers))
        assert (verdict.epochs, verdict.steps) == (self.epochs, steps)
        assert (self.directory / f"out-{self.name}" / "model.keras").exists()
        return verdict


def _same_workers(line: str, wanted: str) -> bool:
    found = line.partition(": workers ")[2].partition(", because")[0]
    expected = wanted.partition("workers ")[2].partition(", because")[0]
    return sorted(found.split(", ")) == sorted(expected.split(", "))
