"""Horovod itself: the only module that imports it.

Besides Horovod's own calls, our changed one (`third_party/horovod`) has some more, which are called through
ctypes; a stock one has none of them. Horovod keeps its ring in process-wide state, so there is one `Library`
per process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from edl_allreduce.worker.ring.errors import plain

SURVIVES, ABORTS, PREPARES, SENDS, BATCHES, PROVES = 1, 2, 32, 64, 128, 256
"""What `horovod_edl_features` says: a lost peer ends no process; a ring can be told to fail; the next ring
can be connected while this one works; ranks can send to each other without all agreeing on it before; all
addresses come from the store in one answer; connections that do not prove that they belong to the ring are
hung up."""

PLACE_IN_RING = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
"""As the environment names it and `horovod_edl_prepare` takes it."""

NUMBER, LENGTH, ADDRESS, TEXT = ctypes.c_int, ctypes.c_longlong, ctypes.c_void_p, ctypes.c_char_p
CALLS = {
    "abort_generation": (ABORTS, (LENGTH,)),
    "ring_key": (PROVES, (LENGTH, TEXT, NUMBER)),
    "prepare": (PREPARES, (LENGTH, TEXT, TEXT, *(NUMBER for _ in PLACE_IN_RING))),
    "exchange": (SENDS, (ADDRESS, ADDRESS, LENGTH)),
    "send": (SENDS, (NUMBER, ADDRESS, LENGTH)),
    "receive": (SENDS, (NUMBER, ADDRESS, LENGTH)),
}
"""What our Horovod understands beside its own calls: the feature, and the arguments."""

FAILURE_BYTES = 500


class Library:
    """Horovod's calls, and which of our changes it has.

    `_grouped_allreduce` and `_basics.MPI_LIB_CTYPES` are private to Horovod. They were tried with 0.28.1, its
    last release, as it is and with our changes, under TensorFlow 2.21. The public `grouped_allreduce` asks
    for the ring's size while it is traced, and the graph outlives the ring.
    """

    def __init__(self) -> None:
        import horovod.tensorflow as hvd
        from horovod.tensorflow import mpi_ops

        self._hvd = hvd
        self._ops = mpi_ops
        self._calls: Any = mpi_ops._basics.MPI_LIB_CTYPES
        self.features = self._ask_features()
        self.init = hvd.init
        self.shutdown = hvd.shutdown
        self.allgather = mpi_ops.allgather
        self.broadcast = mpi_ops.broadcast

    def has(self, feature: int) -> bool:
        return bool(self.features & feature)

    def rank(self) -> int:
        return int(self._hvd.rank())

    def size(self) -> int:
        return int(self._hvd.size())

    def grouped_sum(self, tensors: Sequence[Any], group: int = 0) -> list[Any]:
        """One operation for all tensors, which have one type. Ranks find each other's by its name, and a name
        can be under way only once."""
        name = f"edl.step.{group}" if group else "edl.step"
        summed: list[Any] = self._ops._grouped_allreduce(
            list(tensors), name=name, op=self._hvd.Sum, ignore_name_scope=True
        )
        return summed

    def call(self, name: str, *arguments: Any) -> bool:
        """One of ours; True when it succeeded."""
        return bool(getattr(self._calls, f"horovod_edl_{name}")(*arguments) == 0)

    def failure(self) -> str:
        """What Horovod says about its last failure; it names the peer."""
        if not self.has(ABORTS):
            return ""
        words = ctypes.create_string_buffer(FAILURE_BYTES)
        self._calls.horovod_edl_failure(words, len(words))
        return plain(words.value.decode(errors="replace")) if words.value else ""

    def _ask_features(self) -> int:
        """Which of our changes this Horovod has; 0 for a stock one."""
        try:
            features = int(self._calls.horovod_edl_features())
        except AttributeError:
            return 0
        for name, (feature, arguments) in CALLS.items():
            if features & feature:
                getattr(self._calls, f"horovod_edl_{name}").argtypes = arguments
        return features
