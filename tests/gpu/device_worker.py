"""A worker of tests/horovod/ring_worker.py whose tensors are on a device: the stand-in's, in memory."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "horovod"))

import horovod.tensorflow as hvd
import numpy as np
import ring_worker

# Horovod's library is loaded already; what stands in for TensorFlow's tensors finds its functions there.
ctypes.CDLL(ring_worker.LIBRARY._name, mode=ctypes.RTLD_GLOBAL)
DEVICE = ctypes.CDLL(os.environ["STANDIN_DEVICE_TENSORS"])
TYPES = {"uint8": 0, "int8": 1, "int32": 4, "int64": 5, "float16": 6, "float32": 7, "float64": 8}
"""As `horovod::common::DataType`."""

UNTOUCHED = 42.0
AFTER_AN_ABORT_SECONDS = 0.06
"""Longer than a kernel of the stand-in runs on after its communicator was aborted."""


class Failed(ValueError):
    pass


def check(code: int, words: ctypes.Array[ctypes.c_char]) -> None:
    if code != 0:
        raise Failed(words.value.decode())


def device_sum(
    name: str, tensors: list[np.ndarray], before: float = 1.0, after: float = 1.0
) -> list[np.ndarray]:
    outputs = [np.zeros_like(tensor) for tensor in tensors]
    sum_into(name, tensors, outputs, before, after)
    return outputs


def sum_into(
    name: str, tensors: list[np.ndarray], outputs: list[np.ndarray], before: float = 1.0, after: float = 1.0
) -> None:
    count = len(tensors)
    words = ctypes.create_string_buffer(500)
    code = DEVICE.device_sum(
        name.encode(),
        count,
        (ctypes.c_void_p * count)(*(each.ctypes.data for each in tensors)),
        (ctypes.c_void_p * count)(*(each.ctypes.data for each in outputs)),
        (ctypes.c_long * count)(*(each.size for each in tensors)),
        TYPES[str(tensors[0].dtype)],
        ctypes.c_double(before),
        ctypes.c_double(after),
        words,
        ctypes.c_size_t(len(words) - 1),
    )
    check(code, words)


class DeviceWorker(ring_worker.Worker):
    def do_sum(self, values: list[float]) -> list[float]:
        """As the lab proves a ring: with tensors on the device."""
        result: list[float] = device_sum("sum", [np.array(values, np.float32)])[0].tolist()
        return result

    def do_device_operations(self) -> dict[str, Any]:
        """One of each with results that depend on every rank."""
        rank, size = hvd.rank(), hvd.size()
        words = ctypes.create_string_buffer(500)
        room = ctypes.c_size_t(len(words) - 1)
        sent = np.full(5, float(rank), np.float32)
        check(
            DEVICE.device_broadcast(
                b"broadcast", ctypes.c_void_p(sent.ctypes.data), ctypes.c_long(5), size - 1, words, room
            ),
            words,
        )
        mine = np.full(2 + rank, float(rank), np.float32)
        gathered = np.zeros(sum(2 + each for each in range(size)), np.float32)
        check(
            DEVICE.device_gather(
                b"gather",
                ctypes.c_void_p(mine.ctypes.data),
                ctypes.c_long(mine.size),
                ctypes.c_void_p(gathered.ctypes.data),
                ctypes.c_long(gathered.nbytes),
                words,
                room,
            ),
            words,
        )
        several = [np.arange(each, dtype=np.float32) + rank for each in (1, 7, 1000)]
        return {
            "broadcast": sent.tolist(),
            "gather": gathered.tolist(),
            "grouped": [each.tolist() for each in device_sum("grouped", several)],
            "scaled": [each.tolist() for each in device_sum("scaled", several, 0.5, 4.0)],
            "types": {name: device_sum(name, [np.array([1, 2, rank], name)])[0].tolist() for name in TYPES},
            "scaled types": {
                name: device_sum(f"scaled {name}", [np.array([2, 4, 6], name)], 0.5)[0].tolist()
                for name in TYPES
            },
        }

    def do_device_sum_until_failure(self, elements: int, most: int = 10**9) -> dict[str, Any]:
        """Sum in a loop until it fails; then look whether a kernel still writes to what is ours again."""
        tensors = [np.ones(elements, np.float32), np.ones(3, np.float32)]
        outputs = [np.zeros_like(each) for each in tensors]
        for step in range(most):
            try:
                sum_into("loop", tensors, outputs)
            except Failed as failed:
                for each in outputs:
                    each.fill(UNTOUCHED)
                time.sleep(AFTER_AN_ABORT_SECONDS)
                touched = not all((each == UNTOUCHED).all() for each in outputs)
                return {"failure": str(failed), "steps": step, "touched": touched}
            assert all((each == hvd.size()).all() for each in outputs), "a wrong sum"
        return {"failure": "", "steps": most, "touched": False}


if __name__ == "__main__":
    ring_worker.main(sys.argv[1], DeviceWorker)
