"""One rank of stock Horovod without a model: each line on stdin, "RANK SIZE", is a ring to go over to."""

from __future__ import annotations

import os
import sys

import horovod.tensorflow as hvd
import tensorflow as tf
from horovod.tensorflow import mpi_ops

from edl_allreduce import clock


def main() -> None:
    port = sys.argv[1]
    os.environ.update(
        HOROVOD_CONTROLLER="gloo",
        HOROVOD_CPU_OPERATIONS="gloo",
        HOROVOD_GLOO_RENDEZVOUS_ADDR="127.0.0.1",
        HOROVOD_GLOO_RENDEZVOUS_PORT=port,
        HOROVOD_GLOO_IFACE="lo",
        HOROVOD_GLOO_TIMEOUT_SECONDS="120",
        HOROVOD_HOSTNAME="localhost",
        HOROVOD_CROSS_RANK="0",
        HOROVOD_CROSS_SIZE="1",
    )
    print("ready", flush=True)
    inside = False
    for line in sys.stdin:
        rank, size = line.split()
        if inside:
            hvd.shutdown()
        os.environ.update(
            HOROVOD_RANK=rank, HOROVOD_SIZE=size, HOROVOD_LOCAL_RANK=rank, HOROVOD_LOCAL_SIZE=size
        )
        hvd.init()
        inside = True
        mpi_ops.allgather(tf.constant([[int(rank)]], tf.int64), name="all")
        print(repr(clock.now()), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
