"""The ring of one generation. The only module that imports Horovod.

Horovod keeps its ring in process-wide state, so there is one `HorovodRing` per process. `join` and `leave`
belong to the training thread; `prepare` and `abort` may come from any thread.
"""

from __future__ import annotations

import ctypes
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from edl_allreduce import outside
from edl_allreduce.core import ring_words
from edl_allreduce.core.protocol import Plan
from edl_allreduce.errors import RingBroken
from edl_allreduce.version import STOCK_HOROVOD

log = logging.getLogger(__name__)

SURVIVES, ABORTS, PREPARES, SENDS, BATCHES = 1, 2, 32, 64, 128
"""What `horovod_edl_features` says: a lost peer ends no process; a ring can be told to fail; the next ring
can be connected while this one works; ranks can send to each other without all agreeing on it before; all
addresses come from the store in one answer."""

LOOPBACK = "127.0.0.1"
"""Where the rendezvous store listens."""

PLACE_IN_RING = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
"""As the environment names it and `horovod_edl_prepare` takes it."""

CHUNK_BYTES = 64 * 1024 * 1024
"""State is sent in parcels of this size: small variables share one, a large model is never packed whole."""


Arrays = list[np.ndarray[Any, Any]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Ring(Protocol):
    """What training needs from the others."""

    rank: int
    size: int

    def sum(self, tensors: Sequence[Any]) -> list[Any]:
        """All tensors summed over the ring, as one operation that succeeds or fails as a whole."""

    def gather(self, values: Sequence[int]) -> list[list[int]]:
        """The values of every rank, in rank order."""

    def share_state(self, arrays: Arrays, root: int, takers: Sequence[int]) -> Arrays:
        """On the ranks that take: the arrays of `root`, which all others have as well, in place of these of
        the same kinds."""


class SoloRing:
    """A ring of one without Horovod (`--distribution_strategy=Local`)."""

    rank = 0
    size = 1

    def join(self, plan: Plan, uid: str) -> None:
        """Nobody is to be met."""

    def leave(self) -> None:
        """Nobody is left behind."""

    def sum(self, tensors: Sequence[Any]) -> list[Any]:
        return list(tensors)

    def gather(self, values: Sequence[int]) -> list[list[int]]:
        return [list(values)]

    def share_state(self, arrays: Arrays, root: int, takers: Sequence[int]) -> Arrays:
        return arrays


class _Collectives:
    """Horovod's operations, whoever made the ring."""

    def __init__(self) -> None:
        import horovod.tensorflow as hvd
        from horovod.tensorflow import mpi_ops

        self._hvd = hvd
        self._ops = mpi_ops
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
            raise broken(error) from error
        return [[int(v) for v in row] for row in table.numpy()]

    def share_state(self, arrays: Arrays, root: int, takers: Sequence[int]) -> Arrays:
        received = [np.empty_like(array) for array in arrays] if self.rank in takers else arrays
        for number, (parcel, places) in enumerate(zip(_parcels(arrays), _parcels(received), strict=True)):
            sent = self._broadcast(np.concatenate(parcel), root, number)
            if self.rank in takers:
                _unpack(sent, places)
        return received

    def _broadcast(self, packed: Bytes, root: int, number: int) -> Bytes:
        try:
            sent: Bytes = self._ops.broadcast(tf.constant(packed), root, name=f"edl.state.{number}").numpy()
        except tf.errors.OpError as error:
            raise broken(error) from error
        return sent


HALVES = {tf.float16, tf.bfloat16}


def _wire_type(kinds: set[Any]) -> Any:
    """One operation has one type: tensors of several travel in one that holds them all."""
    if kinds <= {tf.float32} | HALVES:
        return tf.float32
    if all(kind.is_integer for kind in kinds):
        return tf.int64
    return tf.float64


def _parcels(arrays: Iterable[np.ndarray[Any, Any]]) -> Iterator[list[Bytes]]:
    """The bytes of all arrays as views, in parcels of at most CHUNK_BYTES."""
    parcel: list[Bytes] = []
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


def _unpack(packed: Bytes, places: list[Bytes]) -> None:
    ends = np.cumsum([place.size for place in places])
    for place, part in zip(places, np.split(packed, ends[:-1]), strict=True):
        place[:] = part


class FixedRing(_Collectives):
    """The ring that horovodrun or mpirun made: it is there from the beginning, once and for all."""

    def __init__(self) -> None:
        super().__init__()
        try:
            self._hvd.init()
        except (ValueError, RuntimeError) as error:
            raise RingBroken(f"the launcher's ring did not form: {_plain(str(error))}") from error
        self.rank, self.size = self._hvd.rank(), self._hvd.size()

    def join(self, plan: Plan, uid: str) -> None:
        """It is joined."""

    def leave(self) -> None:
        """Stay connected: a launcher's ring forms once."""

    def close(self) -> None:
        """Disconnect for good; MPI wants it before the process ends."""
        self._hvd.shutdown()


@dataclass
class _Preparation:
    """A ring that is being connected beside the one that works."""

    generation: int
    thread: threading.Thread
    failure: str | None = "not tried"
    """None when it stands."""


class HorovodRing(_Collectives):
    """Horovod's ring, made and left as plans come."""

    def __init__(self, store_port: int, interface: str, timeout: int) -> None:
        # Horovod reads these at every init; the rank and size follow from the plan.
        os.environ.update(
            HOROVOD_CONTROLLER="gloo",
            HOROVOD_CPU_OPERATIONS="gloo",
            HOROVOD_GLOO_RENDEZVOUS_PORT=str(store_port),
            HOROVOD_GLOO_IFACE=interface,
            HOROVOD_GLOO_TIMEOUT_SECONDS=str(timeout),
        )
        os.environ.setdefault("HOROVOD_LOG_LEVEL", "fatal")
        super().__init__()
        self._library: Any = self._ops._basics.MPI_LIB_CTYPES
        self.features = _features(self._library)
        os.environ["HOROVOD_EDL_STORE_BATCH"] = str(int(bool(self.features & BATCHES)))
        if not self.features & SURVIVES:
            log.warning("this Horovod is %s `scripts/setup` builds one that cures this", STOCK_HOROVOD)
            # It may abort the process after a failed operation unless the cache is off.
            os.environ.setdefault("HOROVOD_CACHE_CAPACITY", "0")
        self._current = 0
        self._preparation: _Preparation | None = None
        self._sockets: set[tuple[int, str]] = set()
        self._lock = threading.Lock()

    @property
    def generation(self) -> int:
        """The ring that this process is in or is entering, else the one that it connects to; 0 for none."""
        preparation = self._preparation
        if self._current or preparation is None or not preparation.thread.is_alive():
            return self._current
        return preparation.generation

    # -------------------------------------------------------------------------------- coming and going

    def prepare(self, plan: Plan, uid: str, then: Callable[[], None]) -> None:
        """Connect to the ring of `plan` while the present one works; `then` is called when that ended, well
        or not. All members do it: a ring of which one member failed here cannot be joined."""
        if not self.features & PREPARES or plan.size == 1:
            return then()
        place = _topology(plan, _rank(plan, uid))
        before = self._preparation

        def connect() -> None:
            if before is not None:
                before.thread.join()
            failed = self._library.horovod_edl_prepare(
                plan.generation, LOOPBACK.encode(), place["HOROVOD_HOSTNAME"].encode(),
                *(int(place[f"HOROVOD_{key}"]) for key in PLACE_IN_RING),
            )  # fmt: skip
            preparation.failure = self._why() or "it was given up" if failed else None
            then()

        preparation = _Preparation(
            plan.generation, threading.Thread(target=connect, name="prepare", daemon=True)
        )
        self._preparation = preparation
        preparation.thread.start()

    def join(self, plan: Plan, uid: str) -> None:
        """Connect to the ring of `plan`, or take its connections if they were prepared; raises RingBroken
        when it does not come about."""
        rank = _rank(plan, uid)
        with self._lock:
            self._current = plan.generation
        self._await_preparation(plan.generation)
        # With an address Horovod would ask the store even when there is nobody to meet.
        os.environ.pop("HOROVOD_GLOO_RENDEZVOUS_ADDR", None)
        if plan.size > 1:
            os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"] = LOOPBACK
        os.environ.update(_topology(plan, rank))
        self.rank, self.size = rank, plan.size
        before = set() if self.features & ABORTS else _own_sockets()
        try:
            self._hvd.init()
        except (ValueError, RuntimeError) as error:
            self.leave()
            why = self._why() or _plain(str(error))
            raise RingBroken(f"the ring of generation {plan.generation} did not form: {why}") from error
        if not self.features & ABORTS:
            self._sockets = _own_sockets() - before

    def _await_preparation(self, generation: int) -> None:
        """Until no connection is under way; raises RingBroken if that to this generation failed."""
        preparation, self._preparation = self._preparation, None
        if preparation is None:
            return
        if preparation.generation < generation:
            self.abort(preparation.generation)  # nobody comes there any more
        preparation.thread.join()
        if preparation.generation == generation and preparation.failure is not None:
            self.leave()
            raise RingBroken(f"the ring of generation {generation} did not form: {preparation.failure}")

    def leave(self) -> None:
        """Disconnect. Afterwards no operation of this ring is under way."""
        self._hvd.shutdown()
        with self._lock:
            self._current = 0
            self._sockets = set()

    def abort(self, generation: int) -> None:
        """Make the ring of this generation fail now, while it forms or works, although no peer hangs up."""
        if self.features & ABORTS:
            # Holds also for an init of this generation that begins a moment later.
            self._library.horovod_edl_abort_generation(generation)
            return
        with self._lock:
            if 0 < self._current <= generation:
                _shut_down(self._sockets)

    # ------------------------------------------------------------------------------- without negotiation

    def gather(self, values: Sequence[int]) -> list[list[int]]:
        if not self.features & SENDS:
            return super().gather(values)
        mine = np.array(values, np.int64)
        table = np.empty((self.size, mine.size), np.int64)
        self._direct("exchange", mine.ctypes.data, table.ctypes.data, mine.nbytes)
        rows: list[list[int]] = table.tolist()
        return rows

    def share_state(self, arrays: Arrays, root: int, takers: Sequence[int]) -> Arrays:
        givers = [rank for rank in range(self.size) if rank not in takers]
        if not self.features & SENDS or len(takers) > len(givers):
            return super().share_state(arrays, root, takers)  # then a tree is quicker
        received = [np.empty_like(array) for array in arrays] if self.rank in takers else arrays
        for giver, taker in zip(givers, takers, strict=False):
            for parcel in _parcels(received):
                if self.rank == giver:
                    packed = np.concatenate(parcel)
                    self._direct("send", taker, packed.ctypes.data, packed.nbytes)
                elif self.rank == taker:
                    packed = np.empty(sum(part.size for part in parcel), np.uint8)
                    self._direct("receive", giver, packed.ctypes.data, packed.nbytes)
                    _unpack(packed, parcel)
        return received

    def _direct(self, what: str, *arguments: int) -> None:
        if getattr(self._library, f"horovod_edl_{what}")(*arguments) != 0:
            raise RingBroken(self._why())

    def _why(self) -> str:
        """What Horovod says about its last failure; it names the peer."""
        if not self.features & ABORTS:
            return ""
        words = ctypes.create_string_buffer(500)
        self._library.horovod_edl_failure(words, len(words))
        return _plain(words.value.decode(errors="replace")) if words.value else ""


BROKEN = (
    tf.errors.UnknownError,
    tf.errors.AbortedError,
    tf.errors.UnavailableError,
    tf.errors.FailedPreconditionError,
)
"""What a failed Horovod operation raises inside a tf.function; the last one when ranks brought tensors of
different shapes, which is no reason for all of them to die."""


def broken(error: tf.errors.OpError) -> RingBroken:
    """The ring's failure as our own error."""
    return RingBroken(_plain(str(error.message) or type(error).__name__))


def _plain(words: str) -> str:
    """For people; whoever looks for the cause in Gloo finds its own words in the log."""
    log.info("Horovod says: %s", outside.line(words, 1000))
    return ring_words.plain(words)


def _rank(plan: Plan, uid: str) -> int:
    rank = plan.rank_of(uid)
    if rank is None:
        raise ValueError(f"{uid} is not in the plan of generation {plan.generation}")
    return rank


def _topology(plan: Plan, rank: int) -> dict[str, str]:
    """What Horovod wants to know about hosts, from the plan."""
    host = plan.members[rank].host
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
    }


NUMBER, LENGTH, PLACE, TEXT = ctypes.c_int, ctypes.c_longlong, ctypes.c_void_p, ctypes.c_char_p
CALLS = {
    "abort_generation": (ABORTS, (LENGTH,)),
    "prepare": (PREPARES, (LENGTH, TEXT, TEXT, *(NUMBER for _ in PLACE_IN_RING))),
    "exchange": (SENDS, (PLACE, PLACE, LENGTH)),
    "send": (SENDS, (NUMBER, PLACE, LENGTH)),
    "receive": (SENDS, (NUMBER, PLACE, LENGTH)),
}
"""What our Horovod understands beside its own calls: the feature, and the arguments."""


def _features(library: Any) -> int:
    """Which of our changes this Horovod has; 0 for a stock one."""
    try:
        features = int(library.horovod_edl_features())
    except AttributeError:
        return 0
    for name, (feature, arguments) in CALLS.items():
        if features & feature:
            getattr(library, f"horovod_edl_{name}").argtypes = arguments
    return features


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
