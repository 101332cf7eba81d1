"""A plain Kubernetes Job instead of a master that makes pods.

`python -m edl_allreduce.worker.start.kubernetes_job …`

The way of the Paddle guide, with its variables: all pods of the Job find each other through the API server,
wait until every one of them runs, and rank themselves by their sorted addresses. Rank 0 serves the others.

    JOB_NAME, JOB_NAMESPACE       the Job
    JOB_PATH                      a shared volume; JOB_PATH/JOB_NAME/<N>/data holds the data, split or not
    TRAIN_CONFIG_DIR              directory of the model files, below JOB_PATH/JOB_NAME (else --model_zoo)
    CONF_PADDLE_GRADIENT_NUM      how many pods train
    CONF_PADDLE_PORT              the port of rank 0 (7164)
    CONF_PADDLE_NIC               the network interface

Flags are passed on to the worker as they are. Results: output/node_<N>/train.log, output/pass-<epoch>/.
"""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edl_allreduce import clock, logs
from edl_allreduce.cluster.kubernetes import names
from edl_allreduce.cluster.kubernetes.api import Api
from edl_allreduce.contract import JOB_TOKEN, POD_IP
from edl_allreduce.errors import EdlError, SetupError, UsageError
from edl_allreduce.worker.start import signals

log = logging.getLogger("edl_allreduce.worker.start.kubernetes_job")

DEFAULT_PORT = 7164
POLL_SECONDS = 1.0
"""Between two looks at the pods: all of them ask the API server, and a Job starts in seconds anyway."""
ALL_RUN_SECONDS = 600.0
"""How long the pods of a Job may take until all of them run."""
JOB_LABEL = "job-name"
Pod = Mapping[str, Any]


@dataclass(frozen=True)
class ManifestSettings:
    """What the Job's manifest says."""

    job_name: str
    namespace: str
    directory: Path
    size: int
    port: int = DEFAULT_PORT
    model_zoo: str = ""

    @property
    def output(self) -> Path:
        return self.directory / "output"


def settings_of(environ: Mapping[str, str]) -> ManifestSettings:
    """From the guide's variables."""
    missing = [v for v in ("JOB_NAME", "JOB_PATH", "CONF_PADDLE_GRADIENT_NUM") if not environ.get(v)]
    if missing:
        raise UsageError(f"{', '.join(missing)} must be set in the Job's manifest; see manifests/static/")
    directory = Path(environ["JOB_PATH"]) / environ["JOB_NAME"]
    config = environ.get("TRAIN_CONFIG_DIR", "")
    return ManifestSettings(
        job_name=environ["JOB_NAME"],
        namespace=environ.get("JOB_NAMESPACE", "default"),
        directory=directory,
        size=int(environ["CONF_PADDLE_GRADIENT_NUM"]),
        port=int(environ.get("CONF_PADDLE_PORT", DEFAULT_PORT)),
        model_zoo=str(directory / config) if config else "",
    )


@dataclass(frozen=True)
class PodPlace:
    """Who this pod is among the others."""

    rank: int
    addresses: tuple[str, ...]
    """Of all ranks."""
    token: str

    def master(self, port: int) -> str:
        first = self.addresses[0]
        return f"[{first}]:{port}" if ":" in first else f"{first}:{port}"


def find_place(pods: Sequence[Pod], size: int, own_address: str) -> PodPlace | None:
    """None while not all pods run. Ranks follow the addresses sorted as text, as in the guide."""
    alive = [p for p in pods if p["status"].get("phase") == "Running" and p["status"].get("podIP")]
    # Anybody can give a pod the label of the Job; its own owner is what this pod can rely on.
    uid = next((_job_of(pod) for pod in alive if pod["status"]["podIP"] == own_address), "")
    addresses = tuple(sorted(pod["status"]["podIP"] for pod in alive if _job_of(pod) == uid))
    if not uid or len(addresses) < size:
        return None
    # Every pod of the Job can compute it, and nobody who may not read the Job's pods.
    token = hashlib.sha256(f"elasticdl {uid}".encode()).hexdigest()
    return PodPlace(addresses.index(own_address), addresses, token)


def _job_of(pod: Pod) -> str:
    """The uid of the Job that made the pod; empty when none did."""
    owners = pod["metadata"].get("ownerReferences") or []
    return next((str(o["uid"]) for o in owners if o.get("kind") == "Job" and o.get("controller")), "")


def main(argv: list[str] | None = None) -> int:
    logs.print_lines("INFO", "static")
    try:
        settings = settings_of(os.environ)
        place = wait_for_all(settings, os.environ.get(POD_IP) or socket.gethostbyname(socket.gethostname()))
        return run(settings, place, sys.argv[1:] if argv is None else argv)
    except EdlError as error:
        log.error("%s", error)
        return error.exit_code


def wait_for_all(settings: ManifestSettings, own_address: str) -> PodPlace:
    """Until every pod of the Job runs."""
    api = Api.connect()
    path = names.path("pods", settings.namespace)
    for _ in clock.polls(POLL_SECONDS, within=ALL_RUN_SECONDS):
        pods = api.get(path, labelSelector=f"{JOB_LABEL}={settings.job_name}").get("items") or []
        place = find_place(pods, settings.size, own_address)
        if place is not None:
            return place
    raise SetupError(
        f"after {ALL_RUN_SECONDS:.0f} s not all {settings.size} pods of Job {settings.job_name} run; "
        f"`kubectl get pods -l {JOB_LABEL}={settings.job_name}` shows which, `kubectl describe pod` why"
    )


def run(settings: ManifestSettings, place: PodPlace, argv: Sequence[str]) -> int:
    """Rank 0 serves and trains, the others train; what a worker prints is kept in its train.log, too."""
    log.info("rank %d of %d; ring: %s", place.rank, len(place.addresses), ", ".join(place.addresses))
    environment = {**os.environ, JOB_TOKEN: place.token, POD_IP: place.addresses[place.rank]}
    flags = job_flags(settings, argv)
    server = None
    if place.rank == 0:
        command = master_command(settings, flags)
        server = subprocess.Popen([sys.executable, *command], env=environment, stdin=subprocess.DEVNULL)
    own_logs = settings.output / f"node_{place.rank}"
    own_logs.mkdir(parents=True, exist_ok=True)
    command = worker_command(settings, place, flags)
    with (own_logs / "train.log").open("w") as file:
        worker = subprocess.Popen(
            [sys.executable, *command], env=environment, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        signals.block()
        signals.on_termination(lambda: worker.send_signal(signal.SIGTERM))
        assert worker.stdout is not None
        for text in (f"arguments: {' '.join(command)}\n", *worker.stdout):
            print(text, end="", flush=True)
            file.write(text)
            file.flush()
    code = worker.wait()
    if server is not None:
        if code != 0:
            server.terminate()  # the others cannot do without this pod
        server.wait()
    return code if code >= 0 else 128 - code


def job_flags(settings: ManifestSettings, argv: Sequence[str]) -> list[str]:
    """The guide's layout as flags; what the manifest gives counts more."""
    given = {word.partition("=")[0] for word in argv}
    usual = {
        "--job_name": settings.job_name,
        "--training_data": str(settings.directory / "*" / "data" / "*"),
        "--output": str(settings.output),
        "--model_zoo": settings.model_zoo,
    }
    return [*(f"{k}={v}" for k, v in usual.items() if v and k not in given), *argv]


def master_command(settings: ManifestSettings, flags: Sequence[str]) -> list[str]:
    own = [f"--port={settings.port}", "--bind=0.0.0.0", "--job_dir=/tmp/elasticdl-static"]
    return ["-m", "edl_allreduce.master.main", *flags, *_ring(settings), *own]


def worker_command(settings: ManifestSettings, place: PodPlace, flags: Sequence[str]) -> list[str]:
    own = [f"--worker_id={place.rank}", f"--master_addr={place.master(settings.port)}"]
    # The first rank of the ring writes what it says.
    own.append(f"--passes_dir={settings.output}")
    return ["-m", "edl_allreduce.worker.main", *flags, *_ring(settings), *own]


def _ring(settings: ManifestSettings) -> list[str]:
    """Nobody starts workers here, and all must be there."""
    return ["--num_workers=0", f"--min_workers={settings.size}"]


if __name__ == "__main__":
    sys.exit(main())
