"""A plain Kubernetes Job of three pods, without a master that makes pods: the way of the Paddle guide."""

from __future__ import annotations

import pytest
import yaml

from edl_allreduce.core.audit import Verdict
from edl_allreduce.worker.loop.diary import audit
from tests.kubernetes.training import IMAGE, RECORDS, ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.training, pytest.mark.timeout(600)]


def manifest(job, name: str, volume: str) -> dict:
    """A manifest of the guide, with this machine's directories in the place of its volumes."""
    text = (ROOT / "manifests" / "static" / f"{name}.yaml").read_text()
    manifest = yaml.safe_load(text)
    pod = manifest["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    container |= {"image": IMAGE, "imagePullPolicy": "Never"}
    container["env"].append({"name": "PYTHONPATH", "value": "/live"})
    mounts = {"code": "/live/edl_allreduce", "zoo": "/model_zoo"}
    container["volumeMounts"] += [{"name": n, "mountPath": p} for n, p in mounts.items()]
    paths = {volume: job.directory, "code": ROOT / "edl_allreduce", "zoo": ROOT / "model_zoo"}
    pod["volumes"] = [{"name": n, "hostPath": {"path": str(p)}} for n, p in paths.items()]
    return manifest


def run(job, manifest: dict) -> None:
    job.cluster.apply(manifest, namespace=job.namespace)
    name = manifest["metadata"]["name"]
    complete = ("--for=condition=complete", f"job/{name}", "--timeout=240s")
    job.cluster.kubectl("wait", "-n", job.namespace, *complete, timeout=260)


def test_a_plain_job_trains_as_in_the_paddle_guide(job, cluster, namespace):
    """Three pods, ranked by their addresses; split data, logs and passes where the guide has them."""
    (job.directory / "raw" / "digits").mkdir(parents=True)
    (job.directory / "digits").rename(job.directory / "raw" / "digits" / "train")
    run(job, manifest(job, "split-job", "mfs"))
    training = manifest(job, "train-job", "jobpath")
    (container,) = training["spec"]["template"]["spec"]["containers"]
    container["args"].append("--audit_dir=/home/jobpath/audit")
    assert training["spec"]["parallelism"] == training["spec"]["completions"] == 3
    run(job, training)

    home = job.directory / "paddle-cluster-job"
    assert sorted(path.name for path in home.iterdir()) == ["0", "1", "2", "output"]
    pods = cluster.pods(namespace, "job-name=paddle-cluster-job")
    addresses = sorted(pod["status"]["podIP"] for pod in pods)
    for rank, address in enumerate(addresses):
        log = (home / "output" / f"node_{rank}" / "train.log").read_text()
        assert log.startswith("arguments: ")
        assert f"worker {rank} " in log and f" on {address};" in log, "ranks follow the addresses"
        assert "Loss = " in log
    for epoch in range(3):
        assert (home / "output" / f"pass-{epoch:05d}" / "done").exists()
    verdict: Verdict = audit(str(job.directory / "audit"))
    assert verdict.clean, verdict
    assert (verdict.epochs, verdict.steps) == (3, 3 * -(-RECORDS // (3 * 64)))
