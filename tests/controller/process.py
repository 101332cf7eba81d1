"""A real controller: its process, with exactly the rights that its manifests give."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edl_allreduce.core.controller import mail
from edl_allreduce.core.controller.mail import Orders
from kubelab import eventually
from kubelab.cluster import Cluster
from tests.trainingjob.conftest import install, remove

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "manifests" / "controller"
SYSTEM = "elasticdl-system"


def allow(cluster: Cluster, directory: Path) -> Path:
    """Apply the controller's rights; returns a kubeconfig of its account."""
    cluster.kubectl("apply", "-f", str(MANIFESTS / "namespace.yaml"), "-f", str(MANIFESTS / "rbac.yaml"))
    return kubeconfig_of_the_account(cluster, directory)


def kubeconfig_of_the_account(cluster: Cluster, directory: Path) -> Path:
    token = cluster.kubectl("create", "token", "elasticdl-controller", "-n", SYSTEM).strip()
    content = json.loads(cluster.kubectl("config", "view", "--raw", "-o", "json"))
    content["users"] = [{"name": user["name"], "user": {"token": token}} for user in content["users"]]
    path = directory / "controller-kubeconfig"
    path.write_text(json.dumps(content))
    return path


class RunningController:
    """One process; `log` is what it printed."""

    def __init__(self, kubeconfig: Path, name: str, *flags: str) -> None:
        self._path = kubeconfig.with_name(f"{name}.log")
        self.name = name
        argv = [sys.executable, "-m", "edl_allreduce.controller", f"--kubeconfig={kubeconfig}"]
        with self._path.open("w") as file:
            self._process = subprocess.Popen(
                [*argv, f"--namespace={SYSTEM}", "--port=0", "--host=127.0.0.1", "--page_port=off", *flags],
                stdout=file, stderr=subprocess.STDOUT, cwd=ROOT,
                env={"PATH": "/usr/bin:/bin", "MY_POD_NAME": name},
            )  # fmt: skip

    @property
    def log(self) -> str:
        return self._path.read_text()

    def says(self, words: str, timeout: float = 120.0) -> None:
        def look() -> bool:
            assert self._process.poll() is None, self.log
            return words in self.log

        eventually(look, f"{self.name} says {words!r}", timeout)

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self.thaw()
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def orders_on(cluster: Cluster, namespace: str, pod: str) -> Orders | None:
    found = cluster.pod(namespace, pod)
    return mail.orders_in(found["metadata"].get("annotations") or {}) if found is not None else None


@contextmanager
def under_a_controller(cluster: Cluster, directory: Path) -> Iterator[RunningController]:
    """TrainingJobs and a controller that leads; both are gone at the end."""
    install(cluster)
    running = RunningController(allow(cluster, directory), "only")
    try:
        running.says("leads in term")  # the Lease may be there from another test
        yield running
    finally:
        running.end()
        remove(cluster)
