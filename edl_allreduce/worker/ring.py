"""The ring of one generation. The only module that imports Horovod.

Horovod keeps its ring in process-wide state, so there is one `HorovodRing` per process. `join` and `leave`
belong to the training thread; `abort` may come from any thread.
"""

from __future__ import annotations

import ctypes
import logging
import os
import socket
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from edl_allreduce.core.membership.types import Plan
from edl_allreduce.errors import RingBroken
from edl_allreduce.version import STOCK_HOROVOD

log = logging.getLogger(__name__)

SURVIVES, ABORTS = 1, 2
"""What `horovod_edl_features` says: a lost peer ends no process; a ring can be told to fail."""

CHUNK_BYTES = 64 * 1024 * 1024
"""State is sent in parcels of this size: small variables share one, a large model is never packed whole."""


class Ring(Protocol):
    """What training needs from the others."""

    rank: int
    size: int

    def sum(self, tensors: Sequence[Any]) -> list[Any]:
        """All tensors summed over the ring, as one operation that succeeds or fails as a whole."""

    def gather(self, values: Sequence[int]) -> list[list[int]]:
        """The values of every rank, in rank order."""

    def share_state(self, arrays: list[np.ndarray[Any, Any]], root: int) -> list[np.ndarray[Any, Any]]:
        """The arrays of `root`, in place of these of the same kinds."""


class SoloRing:
    """A ring of one without Horovod (`--distribution_strategy=Local`)."""

    rank = 0
    size = 1
    generation = 0

    def join(self, plan: Plan, uid: str) -> None:
        """Nobody is to be met."""

    def leave(self) -> None:
        """Nobody is left behind."""

    def sum(self, tensors: Sequence[Any]) -> list[Any]:
        return list(tensors)

    def gather(self, values: Sequence[int]) -> list[list[int]]:
        return [list(values)]

    def share_state(self, arrays: list[np.ndarray[Any, Any]], root: int) -> list[np.ndarray[Any, Any]]:
        return arrays


class _Collectives:
    """Horovod's operations, whoever made the ring."""

    def __init__(self) -> None:
        import horovod.tensorflow as hvd
        from horovod.tensorflow import mpi_ops

        self._hvd = hvd
        self._ops = mpi_ops
        self.generation = 0
        """The ring that this process is in or is entering; 0 for none."""
        self.rank = 0
        self.size = 1

    def sum(self, tensors: Sequence[Any]) -> list[Any]:
        wire = _wire_type({tf.as_dtype(t.dtype) for t in tensors})
        # No value of this ring (rank, size) may enter the graph: it outlives the ring.
        summed = self._ops._grouped_allreduce(
            [tf.cast(t, wire) for t in tensors], name="edl.step", op=self._hvd.Sum, ignore_name_scope=True
        )
        return [tf.cast(s, t.dtype) for s, t in zip(summed, tensors, strict=True)]

    def gather(self, values: Sequence[int]) -> list[list[int]]:
        try:
            table = self._ops.allgather(tf.constant([list(values)], tf.int64), name="edl.gather")
        except tf.errors.OpError as error:
            raise RingBroken(_first_line(error)) from error
        return [[int(v) for v in row] for row in table.numpy()]

    def share_state(self, arrays: list[np.ndarray[Any, Any]], root: int) -> list[np.ndarray[Any, Any]]:
        received = arrays if self.rank == root else [np.empty_like(array) for array in arrays]
        try:
            for number, (parcel, places) in enumerate(zip(_parcels(arrays), _parcels(received), strict=True)):
                packed = tf.constant(np.concatenate(parcel))
                sent = self._ops.broadcast(packed, root, name=f"edl.state.{number}").numpy()
                if self.rank != root:
                    ends = np.cumsum([part.size for part in parcel])
                    for part, got in zip(places, np.split(sent, ends[:-1]), strict=True):
                        part[:] = got
        except tf.errors.OpError as error:
            raise RingBroken(_first_line(error)) from error
        return received


HALVES = {tf.float16, tf.bfloat16}


def _wire_type(kinds: set[Any]) -> Any:
    """One operation has one type: tensors of several travel in one that holds them all."""
    if kinds <= {tf.float32} | HALVES:
        return tf.float32
    if all(kind.is_integer for kind in kinds):
        return tf.int64
    return tf.float64


def _parcels(arrays: Iterable[np.ndarray[Any, Any]]) -> Iterator[list[np.ndarray[Any, Any]]]:
    """The bytes of all arrays as views, in parcels of at most CHUNK_BYTES."""
    parcel: list[np.ndarray[Any, Any]] = []
    room = CHUNK_BYTES
    for array in arrays:
        raw = array.reshape(-1).view(np.uint8)
        while raw.size:
            part, raw = raw[:room], raw[room:]
            parcel.append(part)
            room -= part.size
            if room == 0:
                yield parcel
                parcel, room = [], CHUNK_BYTES
    if parcel:
        yield parcel


class FixedRing(_Collectives):
    """The ring that horovodrun or mpirun made: it is there from the beginning, once and for all."""

    def __init__(self) -> None:
        super().__init__()
        try:
            self._hvd.init()
        except (ValueError, RuntimeError) as error:
            raise RingBroken(f"the launcher's ring did not form: {error}") from error
        self.rank, self.size = self._hvd.rank(), self._hvd.size()

    def join(self, plan: Plan, uid: str) -> None:
        self.generation = plan.generation

    def leave(self) -> None:
        """Stay connected: a launcher's ring forms once."""

    def close(self) -> None:
        """Disconnect for good; MPI wants it before the process ends."""
        self._hvd.shutdown()


class HorovodRing(_Collectives):
    """Horovod's ring, made and left as plans come."""

    def __init__(self, store_port: int, interface: str, timeout: int) -> None:
        # Horovod reads these at every init; the rank and size follow from the plan.
        os.environ.update(
            HOROVOD_CONTROLLER="gloo",
            HOROVOD_CPU_OPERATIONS="gloo",
            HOROVOD_GLOO_RENDEZVOUS_PORT=str(store_port),
            HOROVOD_EDL_STORE_BATCH="1",
            HOROVOD_GLOO_IFACE=interface,
            HOROVOD_GLOO_TIMEOUT_SECONDS=str(timeout),
        )
        os.environ.setdefault("HOROVOD_LOG_LEVEL", "fatal")
        super().__init__()
        self._library: Any = self._ops._basics.MPI_LIB_CTYPES
        self.features = _features(self._library)
        if not self.features & SURVIVES:
            log.warning("this Horovod is %s `scripts/setup` builds one that cures this", STOCK_HOROVOD)
            # It may abort the process after a failed operation unless the cache is off.
            os.environ.setdefault("HOROVOD_CACHE_CAPACITY", "0")
        self._sockets: set[tuple[int, str]] = set()
        self._lock = threading.Lock()

    # -------------------------------------------------------------------------------- coming and going

    def join(self, plan: Plan, uid: str) -> None:
        """Connect to the ring of `plan`; raises RingBroken when it does not come about."""
        rank = plan.rank_of(uid)
        if rank is None:
            raise ValueError(f"{uid} is not in the plan of generation {plan.generation}")
        os.environ.update(_topology(plan, rank))
        self.rank, self.size = rank, plan.size
        before = set() if self.features & ABORTS else _own_sockets()
        with self._lock:
            self.generation = plan.generation
        try:
            self._hvd.init()
        except (ValueError, RuntimeError) as error:
            self.leave()
            why = self._why() or error
            raise RingBroken(f"the ring of generation {plan.generation} did not form: {why}") from error
        if not self.features & ABORTS:
            self._sockets = _own_sockets() - before

    def leave(self) -> None:
        """Disconnect. Afterwards no operation of this ring is under way."""
        self._hvd.shutdown()
        with self._lock:
            self.generation = 0
            self._sockets = set()

    def abort(self, generation: int) -> None:
        """Make the ring of this generation fail now, while it forms or works, although no peer hangs up."""
        if self.features & ABORTS:
            # Holds also for an init of this generation that begins a moment later.
            self._library.horovod_edl_abort_generation(ctypes.c_longlong(generation))
            return
        with self._lock:
            if 0 < self.generation <= generation:
                _shut_down(self._sockets)

    def _why(self) -> str:
        """Horovod's own words about its last failure; it names the peer."""
        if not self.features & ABORTS:
            return ""
        words = ctypes.create_string_buffer(500)
        self._library.horovod_edl_failure(words, len(words))
        return words.value.decode(errors="replace")


BROKEN = (tf.errors.UnknownError, tf.errors.AbortedError, tf.errors.UnavailableError)
"""What a failed Horovod operation raises inside a tf.function."""


def broken(error: tf.errors.OpError) -> RingBroken:
    """The ring's failure as our own error."""
    return RingBroken(_first_line(error))


def _first_line(error: tf.errors.OpError) -> str:
    """The line that says what happened, out of what TensorFlow wraps around it."""
    lines = [line.strip() for line in str(error.message).splitlines() if line.strip()]
    telling = [line for line in lines if "Horovod has been" in line or ("[" in line and "]:" in line)]
    first = (telling or lines or [type(error).__name__])[0]
    general, _, cause = first.partition("Cause: ")
    return (cause or general.partition(". This was caused by")[0])[:200]


def _topology(plan: Plan, rank: int) -> dict[str, str]:
    """What Horovod wants to know about hosts, from the plan."""
    host = plan.members[rank].host
    # With an address Horovod would ask the store even when there is nobody to meet.
    os.environ.pop("HOROVOD_GLOO_RENDEZVOUS_ADDR", None)
    meeting = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1"} if plan.size > 1 else {}
    local = [r for r, seat in enumerate(plan.members) if seat.host == host]
    local_rank = local.index(rank)
    hosts = list(dict.fromkeys(seat.host for seat in plan.members))
    with_peer = [h for h in hosts if sum(seat.host == h for seat in plan.members) > local_rank]
    return {
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(plan.size),
        "HOROVOD_LOCAL_RANK": str(local_rank),
        "HOROVOD_LOCAL_SIZE": str(len(local)),
        "HOROVOD_CROSS_RANK": str(with_peer.index(host)),
        "HOROVOD_CROSS_SIZE": str(len(with_peer)),
        "HOROVOD_HOSTNAME": host,
        "HOROVOD_EDL_GENERATION": str(plan.generation),
        **meeting,
    }


def _features(library: Any) -> int:
    """Which of our changes this Horovod has; 0 for a stock one."""
    try:
        function = library.horovod_edl_features
    except AttributeError:
        return 0
    function.restype = ctypes.c_int
    return int(function())


def _own_sockets() -> set[tuple[int, str]]:
    """This process's sockets as (descriptor, identity); a descriptor alone may be used again."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if target.startswith("socket:"):
            found.add((int(entry.name), target))
    return found


def _shut_down(sockets: set[tuple[int, str]]) -> None:
    for descriptor, identity in sockets & _own_sockets():
        try:
            with socket.socket(fileno=os.dup(descriptor)) as duplicate:
                duplicate.shutdown(socket.SHUT_RDWR)
        except OSError:
            log.debug("socket %s was closed already", identity)
