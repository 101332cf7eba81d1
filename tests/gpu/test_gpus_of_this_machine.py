"""Local workers share the GPUs of their machine; a test has files that look like a driver's, and no GPU."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from edl_allreduce.cluster import gpus
from edl_allreduce.cluster.base import Site
from edl_allreduce.cluster.local import LocalCluster


def devices(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).touch()
    return folder


def test_gpus_are_counted_by_the_files_of_the_driver(tmp_path):
    there = devices(tmp_path, "nvidia0", "nvidia7", "nvidiactl", "nvidia-uvm", "nvme0")
    assert gpus.on_this_machine({}, there) == ["0", "1"]


@pytest.mark.parametrize(
    ("allowed", "names"),
    [("2,5", ["2", "5"]), ("GPU-8f3a", ["GPU-8f3a"]), ("", []), ("-1", [])],
)
def test_the_environment_says_which_may_be_used(tmp_path, allowed, names):
    environ = {"CUDA_VISIBLE_DEVICES": allowed}
    assert gpus.on_this_machine(environ, devices(tmp_path, "nvidia0")) == names


def test_each_worker_has_its_own_while_there_are_enough():
    assert gpus.least_used(["0", "1"], []) == "0"
    assert gpus.least_used(["0", "1"], ["0"]) == "1"
    assert gpus.least_used(["0", "1"], ["0", "1"]) == "0"
    assert gpus.least_used(["0", "1"], ["1"]) == "0"
    assert gpus.least_used([], ["0"]) is None


def test_without_a_gpu_nothing_is_set():
    assert gpus.environment(None, {}) == {}


def test_memory_grows_unless_the_user_wants_it_otherwise():
    assert gpus.environment("1", {}) == {"CUDA_VISIBLE_DEVICES": "1", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    assert (
        gpus.environment("1", {"TF_FORCE_GPU_ALLOW_GROWTH": "false"})["TF_FORCE_GPU_ALLOW_GROWTH"] == "false"
    )


def test_a_replacement_gets_the_gpu_of_the_one_that_died(tmp_path, monkeypatch):
    """Real processes, which write down what they see."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,4")
    tell = "import os, time; print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True); time.sleep(60)"
    site = Site(lambda worker_id: ["-c", tell], tmp_path)

    async def scene() -> list[str]:
        cluster = LocalCluster(site)
        await cluster.start()
        try:
            for worker_id in (0, 1):
                await cluster.launch(worker_id)
            await cluster.kill(0)
            await cluster.next_news()
            await cluster.launch(2)
            return [await seen(cluster, worker_id) for worker_id in (1, 2)]
        finally:
            await cluster.close()

    assert asyncio.run(scene()) == ["4", "3"]


def test_one_that_could_not_be_started_keeps_no_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,4")
    tell = "import os, time; print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True); time.sleep(60)"
    site = Site(lambda worker_id: ["-c", tell], tmp_path)

    async def scene() -> list[str]:
        cluster = LocalCluster(site)
        await cluster.start()
        cluster.log_path(0).mkdir()  # in the way of its log
        try:
            with pytest.raises(OSError):
                await cluster.launch(0)
            for worker_id in (1, 2):
                await cluster.launch(worker_id)
            return [await seen(cluster, worker_id) for worker_id in (1, 2)]
        finally:
            await cluster.close()

    assert asyncio.run(scene()) == ["3", "4"]


async def seen(cluster: LocalCluster, worker_id: int) -> str:
    while not (words := cluster.log_path(worker_id).read_text()).endswith("\n"):
        await asyncio.sleep(0.01)
    return words.strip()
