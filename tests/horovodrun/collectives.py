"""One rank of the comparison: the same sums, gathers and broadcasts through our ring or through MPI.

collectives.py ours|mpi FOLDER
"""

import sys
from pathlib import Path

import numpy as np

SIZES = (1, 7, 1000, 100_003)
TYPES = ("float32", "float64", "float16", "int32", "int64", "uint8")


def inputs(rank: int) -> list[np.ndarray]:
    """Different on every rank, and small enough that no type overflows."""
    random = np.random.default_rng(rank)
    return [random.integers(0, 20, size).astype(kind) for kind in TYPES for size in SIZES]


def ours() -> tuple[int, dict[str, np.ndarray]]:
    import tensorflow as tf

    from edl_allreduce.worker.ring.fixed import FixedRing

    ring = FixedRing()
    arrays = inputs(ring.rank)
    results = {f"sum{i}": t.numpy() for i, t in enumerate(ring.sum([tf.constant(a) for a in arrays]))}
    results["gather"] = np.array(ring.gather([ring.rank, 1 << 40, -ring.rank]))
    for root in range(ring.size):
        others = [rank for rank in range(ring.size) if rank != root]
        sent = ring.share_state([a.copy() for a in arrays], root, others)
        results |= {f"from{root}-{i}": a for i, a in enumerate(sent)}
    ring.close()
    return ring.rank, results


def mpi() -> tuple[int, dict[str, np.ndarray]]:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    arrays = inputs(world.rank)
    # MPI knows no half precision; these sums are small whole numbers, exact in both.
    wide = [a.astype("float32") if a.dtype == np.float16 else a for a in arrays]
    results = {}
    for i, (array, like) in enumerate(zip(wide, arrays, strict=True)):
        total = np.empty_like(array)
        world.Allreduce(array, total)
        results[f"sum{i}"] = total.astype(like.dtype)
    results["gather"] = np.array(world.allgather([world.rank, 1 << 40, -world.rank]))
    for root in range(world.size):
        for i, array in enumerate(arrays):
            results[f"from{root}-{i}"] = np.frombuffer(world.bcast(array.tobytes(), root), array.dtype)
    return world.rank, results


if __name__ == "__main__":
    rank, results = {"ours": ours, "mpi": mpi}[sys.argv[1]]()
    np.savez(Path(sys.argv[2]) / f"{sys.argv[1]}-{rank}.npz", **results)
