"""A worker of tests/horovod/ring_worker.py that uses one GPU of this machine, through TensorFlow."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "horovod"))

import horovod.tensorflow as hvd
import numpy as np
import ring_worker
import tensorflow as tf

TYPES = ("float16", "float32", "float64", "int32", "int64")


def numbers(rank: int, dtype: str, count: int = 10_000) -> np.ndarray:
    """What this rank puts in: whole numbers, so that every type sums them exactly."""
    return np.random.default_rng(rank).integers(0, 9, count).astype(dtype)


class GpuWorker(ring_worker.Worker):
    def do_use(self, gpu: str, device: str) -> list[str]:
        """Before TensorFlow looks for devices."""
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
        self._device = device
        return [each.device_type for each in tf.config.list_physical_devices()]

    def do_collectives(self) -> dict[str, Any]:
        """The largest difference from what NumPy makes of all ranks' numbers, per operation and type."""
        rank, size = hvd.rank(), hvd.size()
        worst: dict[str, float] = {}
        with tf.device(self._device):
            for dtype in TYPES:
                all_numbers = [numbers(each, dtype) for each in range(size)]
                mine = tf.constant(all_numbers[rank])
                pairs = {
                    "sum": (hvd.allreduce(mine, op=hvd.Sum, name=f"sum {dtype}"), sum(all_numbers)),
                    "gather": (hvd.allgather(mine, name=f"gather {dtype}"), np.concatenate(all_numbers)),
                    "broadcast": (
                        hvd.broadcast(mine, root_rank=size - 1, name=f"broadcast {dtype}"),
                        all_numbers[-1],
                    ),
                }
                for name, (got, expected) in pairs.items():
                    difference = np.abs(got.numpy().astype("float64") - np.asarray(expected, "float64"))
                    worst[f"{name} {dtype}"] = float(difference.max())
            placed = mine.device
        return {"worst": worst, "device": placed}

    def do_speed(self, elements: int, times: int) -> float:
        """Median seconds of one sum of float32."""
        with tf.device(self._device):
            tensor = tf.ones([elements])
            seconds = []
            for _ in range(times + 3):
                started = time.perf_counter()
                hvd.allreduce(tensor, op=hvd.Sum, name="speed").numpy()
                seconds.append(time.perf_counter() - started)
        return float(np.median(seconds[3:]))


if __name__ == "__main__":
    ring_worker.main(sys.argv[1], GpuWorker)
