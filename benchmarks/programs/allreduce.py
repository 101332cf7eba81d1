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
    leads, ranks, prepare = SIDES[side]()
    seconds = {}
    for word in sizes:
        count, calls = map(int, word.split("="))
        call = prepare(count // 4)
        for _ in range(WARM_UP):
            call()
        times = []
        for _ in range(calls):
            began = clock.now()
            total = call()
            times.append(clock.now() - began)
            if float(total[0]) != ranks:
                raise AssertionError(f"{ranks} ranks summed to {float(total[0])}")
        seconds[count] = times
    if leads:
        print("FIGURES " + json.dumps(seconds), flush=True)


Prepare = Callable[[int], Callable[[], Any]]
"""For a number of floats: what is to be timed, which returns the sum."""
Side = tuple[bool, int, Prepare]
"""Whether this is the process that prints, how many ones are added up, and the call."""


def ours() -> Side:
    """The sum of a training step, with the control vector that rides along."""
    import tensorflow as tf

    from edl_allreduce.worker.keras.private import Traced
    from edl_allreduce.worker.ring.fixed import FixedRing

    _one_thread()
    ring = FixedRing()

    def prepare(length: int) -> Callable[[], Any]:
        values, control = tf.ones([length]), tf.zeros([5])
        kinds = [tf.TensorSpec.from_tensor(values), tf.TensorSpec.from_tensor(control)]
        traced = Traced(lambda values, control: ring.sum([values, control]), kinds)
        return lambda: traced(values, control)[0]

    return ring.rank == 0, ring.size, prepare


def horovod() -> Side:
    """Horovod straight: one allreduce in a tf.function."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    _one_thread()
    hvd.init()

    def prepare(length: int) -> Callable[[], Any]:
        values = tf.ones([length])
        traced = tf.function(lambda values: hvd.allreduce(values, op=hvd.Sum, name=f"of.{length}"))
        return lambda: traced(values)

    return hvd.rank() == 0, hvd.size(), prepare


def mpi() -> Side:
    from mpi4py import MPI

    world = MPI.COMM_WORLD

    def prepare(length: int) -> Callable[[], Any]:
        values, total = np.ones(length, np.float32), np.zeros(length, np.float32)

        def call() -> Any:
            world.Allreduce(values, total, MPI.SUM)
            return total

        return call

    return world.rank == 0, world.size, prepare


def memcpy() -> Side:
    """What moving the bytes once costs."""

    def prepare(length: int) -> Callable[[], Any]:
        values, copy = np.ones(length, np.float32), np.zeros(length, np.float32)

        def call() -> Any:
            np.copyto(copy, values)
            return copy

        return call

    return True, 1, prepare


def _one_thread() -> None:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)


SIDES: dict[str, Callable[[], Side]] = {
    "ours": ours,
    "horovod": horovod,
    "mpi": mpi,
    "memcpy": memcpy,
}

if __name__ == "__main__":
    main()
