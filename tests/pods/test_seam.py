"""What a master may rely on wherever its workers run: a plan first, and no call that holds up its loop."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path
from typing import Any

from edl_allreduce.cluster import local
from edl_allreduce.cluster.base import Found, Site
from edl_allreduce.cluster.kubernetes.manifests import MasterContext
from edl_allreduce.cluster.kubernetes.pods import KubernetesCluster
from edl_allreduce.cluster.kubernetes.watching import Changed
from edl_allreduce.cluster.local import LocalCluster, classify
from edl_allreduce.cluster.manual import ManualCluster
from edl_allreduce.contract import EXIT_FAILED, EXIT_TERMINATED
from edl_allreduce.core.causes import Cause
from edl_allreduce.core.status import WorkerFacts
from edl_allreduce.spec import parse_job

OWNER = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "elasticdl-job-master", "uid": "u"}}


class SlowLogs:
    """An API server that takes its time with a log."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.answer = threading.Event()

    def text(self, path: str, **query: str | int) -> str:
        self.asked.set()
        assert self.answer.wait(30)
        return f"the end of {path}"


def pods(api: object) -> KubernetesCluster:
    flags = ["--job_name=job", "--image_name=i", "--model_def=a.b.c", "--training_data=/x"]
    return KubernetesCluster(parse_job("train", flags).spec, api, MasterContext("10.0.0.1:50001"), OWNER)


def processes(directory) -> LocalCluster:
    return LocalCluster(Site(lambda worker_id: ["-c", f"print({worker_id})"], directory))


def test_reading_a_log_far_away_does_not_hold_up_the_master():
    async def scenario() -> str:
        api = SlowLogs()
        words = asyncio.create_task(pods(api).last_words(3))
        while not api.asked.is_set():  # a loop that is held up never gets here
            await asyncio.sleep(0.001)
        assert not words.done()
        api.answer.set()
        return await words

    assert asyncio.run(scenario()) == (
        "the end of /api/v1/namespaces/default/pods/elasticdl-job-worker-3/log"
    )


def test_a_plan_says_what_a_launch_would_do_and_does_nothing(tmp_path):
    async def scenario():
        machine = processes(tmp_path / "logs")
        assert machine.plan(4).commands == ((sys.executable, "-c", "print(4)"),)
        (pod,) = pods(object()).plan(4).objects
        assert pod["metadata"]["name"] == "elasticdl-job-worker-4"
        assert pod["metadata"]["ownerReferences"][0]["uid"] == "u"
        nothing = ManualCluster().plan(4)
        assert (nothing.commands, nothing.objects) == ((), ())
        await machine.close()

    asyncio.run(scenario())
    assert not (tmp_path / "logs").exists()


def test_workers_of_this_machine_have_a_process_and_a_log(tmp_path):
    async def scenario():
        cluster = processes(tmp_path / "logs")
        assert await cluster.start() == Found()
        await cluster.launch(0)
        assert cluster.facts(0).pid > 0
        end = await cluster.next_news()
        assert (end.worker_id, end.text) == (0, "exited with 0")
        assert cluster.facts(0) == WorkerFacts()
        assert await cluster.last_words(0) == "0\n"
        assert await cluster.last_words(1) == ""
        await cluster.close()

    asyncio.run(scenario())


def test_pods_are_found_by_their_names():
    async def scenario():
        assert pods(object()).facts(2) == WorkerFacts(name="elasticdl-job-worker-2")

    asyncio.run(scenario())


def test_a_worker_that_was_told_to_leave_and_could_not_say_so_did_not_crash():
    assert classify(EXIT_TERMINATED)[0] is Cause.DISRUPTED
    assert classify(0)[0] is Cause.FINISHED
    assert classify(EXIT_FAILED)[0] is Cause.CRASHED


def test_temporary_files_of_a_master_that_was_killed_go_when_its_job_is_started_again(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)

    async def scenario() -> None:
        other = processes(tmp_path / "other" / "logs")
        killed = processes(tmp_path / "logs")
        killed._scratch._directory._finalizer.detach()  # it cannot tidy up
        os.close(killed._scratch._lock)
        again = processes(tmp_path / "logs")
        assert len(list(tmp_path.glob("elasticdl-*"))) == 3
        await again.start()
        assert len(list(tmp_path.glob("elasticdl-*"))) == 2, "another job keeps its own"
        await again.close()
        await other.close()
        assert not list(tmp_path.glob("elasticdl-*"))

    asyncio.run(scenario())


def test_temporary_files_of_a_master_that_lives_stay_where_another_has_its_job_at_the_same_path(
    tmp_path, monkeypatch
):
    """Two containers that share /tmp and nothing else."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def scenario() -> None:
        first, second = processes(tmp_path / "logs"), processes(tmp_path / "logs")
        await second.start()
        await first.start()
        assert first._scratch.path.exists() and second._scratch.path.exists()
        await first.close()
        await second.close()
        assert not list(tmp_path.glob("elasticdl-*"))

    asyncio.run(scenario())


def test_a_directory_that_is_taken_for_abandoned_before_it_was_locked_is_made_anew(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    taken: list[Path] = []

    def lock(directory: Path) -> int:
        if not taken:
            taken.append(directory)
            directory.rmdir()
        return real(directory)

    real = local._lock
    monkeypatch.setattr(local, "_lock", lock)
    scratch = local.Scratch("elasticdl-x-")
    assert scratch.path.exists() and scratch.path not in taken
    scratch.close()


def test_what_the_scheduler_says_of_several_pods_is_told_once_and_each_worker_has_its_node():
    words = "0/2 nodes are available: 2 Insufficient cpu."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words}

    def pod(number: int, **more: object) -> dict[str, Any]:
        labels = {"elasticdl-replica-type": "worker", "elasticdl-replica-index": str(number)}
        meta = {"name": f"elasticdl-job-worker-{number}", "labels": labels, "ownerReferences": [{"uid": "u"}]}
        return {
            "metadata": meta,
            "spec": {},
            "status": {"phase": "Pending", "conditions": [condition]},
            **more,
        }

    async def scenario():
        cluster = pods(object())
        for number in range(3):
            cluster._hear(Changed(pod(number)))
        told = await cluster.next_news()
        assert words in told.text and cluster._news.empty()
        assert all(words in cluster.facts(number).condition for number in range(3))
        cluster._hear(Changed(pod(1, spec={"nodeName": "spot-7"}, status={"phase": "Running"})))
        assert cluster.facts(1) == WorkerFacts(name="elasticdl-job-worker-1", node="spot-7")

    asyncio.run(scenario())
