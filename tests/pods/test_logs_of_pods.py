"""What pods printed, as `elasticdl logs` reads it, from a scripted API server."""

from __future__ import annotations

import pytest

from edl_allreduce.cluster.kubernetes import names, remote
from edl_allreduce.cluster.kubernetes.remote import ClusterJob
from edl_allreduce.errors import ApiRefused, UsageError


def pod(worker_id: int):
    labels = names.labels("job", names.Replica.WORKER, worker_id)
    return {"metadata": {"name": names.worker_name("job", worker_id), "labels": labels}}


class Server:
    """Its master runs for as many looks as there are lists of workers; each worker prints one line."""

    def __init__(self, *workers: list[int]) -> None:
        self._workers = list(workers)
        self.broken: set[str] = set()

    def get(self, path: str, **query):
        if query:
            now = self._workers.pop(0) if len(self._workers) > 1 else self._workers[0]
            return {"items": [pod(i) for i in now]}
        return {"status": {"phase": "Running" if len(self._workers) > 1 else "Succeeded"}}

    def lines(self, path: str, timeout: float, **query):
        name = path.split("/")[-2]
        if name in self.broken:
            raise ApiRefused("gone", status=500)
        yield f"{name} prints".encode()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(remote, "LIST_SECONDS", 0.05)
    monkeypatch.setattr(remote, "FRESH_SECONDS", 0.0)


def test_all_workers_one_worker_or_the_master():
    job = ClusterJob(Server([10, 2]), "default", "job")
    assert job.logs() == ["2", "10", "master"]
    workers = [(n, f"elasticdl-job-worker-{n} prints") for n in ("2", "10")]
    assert list(job.log_lines()) == workers
    assert list(job.log_lines("10")) == workers[1:]
    assert list(job.log_lines("master")) == [("master", "elasticdl-job-master prints")]


def test_workers_that_come_later_are_followed_until_the_job_ends():
    job = ClusterJob(Server([0], [0, 1], [1, 2], [2]), "default", "job")
    assert sorted(job.log_lines(follow=True)) == [(n, f"elasticdl-job-worker-{n} prints") for n in "012"]


def test_a_log_that_breaks_is_told_and_the_others_go_on(caplog):
    server = Server([0, 1], [0, 1])
    server.broken.add("elasticdl-job-worker-0")
    job = ClusterJob(server, "default", "job")
    assert list(job.log_lines(follow=True)) == [("1", "elasticdl-job-worker-1 prints")]
    assert "the log of elasticdl-job-worker-0 ends here" in caplog.text


def test_a_job_in_pods_is_named_with_its_namespace_and_keeps_its_audit_there():
    job = ClusterJob(Server([0]), "team", "job")
    assert job.named == "--job_name=job --namespace=team"
    with pytest.raises(UsageError, match="mount its volume"):
        job.audit_dir()
