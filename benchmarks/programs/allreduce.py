"""One rank that sums arrays of several sizes and prints the seconds of each call, as a JSON line.

python -m benchmarks.programs.allreduce ours|horovod|mpi|memcpy BYTES=CALLS …
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from edl_allreduce import clock

WARM_UP = 3


def main() -> None:
    side, *sizes = sys.argv[1:]
    leads, prepare = SIDES[side]()
    seconds = {}
    for word in sizes:
        count, calls = map(int, word.split("="))
        call = prepare(count // 4)
        for _ in range(WARM_UP):
            call()
        times = []
        for _ in range(calls):
            began = clock.now()
            call()
            times.append(clock.now() - began)
        seconds[count] = times
    if leads:
        print("FIGURES " + json.dumps(seconds), flush=True)


Prepare = Callable[[int], Callable[[], Any]]


def ours() -> tuple[bool, Prepare]:
    """The sum of a training step, with the control vector that rides along."""
    import tensorflow as tf

    from edl_allreduce.worker.ring import FixedRing

    _one_thread()
    ring = FixedRing()

    def prepare(length: int) -> Callable[[], Any]:
        values, control = tf.ones([length]), tf.zeros([5])
        traced = tf.function(lambda values, control: ring.sum([values, control])[0])
        return lambda: _right(traced(values, control), ring.size)

    return ring.rank == 0, prepare


def horovod() -> tuple[bool, Prepare]:
    """Horovod straight: one allreduce in a tf.function."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    _one_thread()
    hvd.init()

    def prepare(length: int) -> Callable[[], Any]:
        values = tf.ones([length])
        traced = tf.function(lambda values: hvd.allreduce(values, op=hvd.Sum, name=f"of.{length}"))
        return lambda: _right(traced(values), hvd.size())

    return hvd.rank() == 0, prepare


def mpi() -> tuple[bool, Prepare]:
    from mpi4py import MPI

    world = MPI.COMM_WORLD

    def prepare(length: int) -> Callable[[], Any]:
        values, total = np.ones(length, np.float32), np.zeros(length, np.float32)

        def call() -> None:
            world.Allreduce(values, total, MPI.SUM)
            _right(total, world.size)

        return call

    return world.rank == 0, prepare


def memcpy() -> tuple[bool, Prepare]:
    """What moving the bytes once costs."""

    def prepare(length: int) -> Callable[[], Any]:
        values, copy = np.ones(length, np.float32), np.zeros(length, np.float32)
        return lambda: np.copyto(copy, values)

    return True, prepare


def _right(total: Any, size: int) -> None:
    if float(total[0]) != size:
        raise AssertionError(f"{size} ranks summed to {float(total[0])}")


def _one_thread() -> None:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)


SIDES: dict[str, Callable[[], tuple[bool, Prepare]]] = {
    "ours": ours,
    "horovod": horovod,
    "mpi": mpi,
    "memcpy": memcpy,
}

if __name__ == "__main__":
    main()
