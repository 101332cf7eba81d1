"""The elastic ring: Horovod's, made and left as plans come.

Horovod keeps its ring in process-wide state, so there is one `HorovodRing` per process.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from edl_allreduce.core.protocol import Plan
from edl_allreduce.core.rendezvous import places, ring_key
from edl_allreduce.errors import RingBroken
from edl_allreduce.version import STOCK_HOROVOD
from edl_allreduce.worker.ring.base import Arrays
from edl_allreduce.worker.ring.collectives import Collectives
from edl_allreduce.worker.ring.errors import plain
from edl_allreduce.worker.ring.library import (
    ABORTS,
    BATCHES,
    PLACE_IN_RING,
    PREPARES,
    PROVES,
    SENDS,
    SURVIVES,
)
from edl_allreduce.worker.ring.parcels import LARGE, pack, parcels, place_for, unpack
from edl_allreduce.worker.ring.sockets import Sockets, own_sockets, shut_down

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
"""Where the rendezvous store listens."""


@dataclass
class _Preparation:
    """A ring that is being connected beside the one that works."""

    generation: int
    thread: threading.Thread
    failure: str | None = "not tried"
    """None when it stands."""


class HorovodRing(Collectives):
    """See `base.Ring`. With a stock Horovod nothing is prepared, a silent peer is cut off by force, and
    whoever connects at the right moment is let in."""

    def __init__(self, store_port: int, interface: str, timeout: int, token: str) -> None:
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
        os.environ["HOROVOD_EDL_STORE_BATCH"] = str(int(self._library.has(BATCHES)))
        if not self._library.has(SURVIVES):
            log.warning("this Horovod is %s `scripts/setup` builds one that cures this", STOCK_HOROVOD)
            # It may abort the process after a failed operation unless the cache is off.
            os.environ.setdefault("HOROVOD_CACHE_CAPACITY", "0")
        self._token = token
        self._current = 0
        self._preparation: _Preparation | None = None
        self._sockets: Sockets = set()
        self._lock = threading.Lock()

    @property
    def generation(self) -> int:
        preparation = self._preparation
        if self._current or preparation is None or not preparation.thread.is_alive():
            return self._current
        return preparation.generation

    # -------------------------------------------------------------------------------- coming and going

    def prepare(self, plan: Plan, uid: str, then: Callable[[], None]) -> None:
        if not self._library.has(PREPARES) or plan.size == 1:
            return then()
        place = _topology(plan, _rank(plan, uid))
        self._tell_key(plan)
        before = self._preparation

        def connect() -> None:
            if before is not None:
                before.thread.join()
            try:
                connected = self._library.call(
                    "prepare", plan.generation, LOOPBACK.encode(), place["HOROVOD_HOSTNAME"].encode(),
                    *(int(place[f"HOROVOD_{key}"]) for key in PLACE_IN_RING),
                )  # fmt: skip
                preparation.failure = None if connected else self._library.failure() or "it was given up"
            except Exception as error:  # noqa: BLE001  handed over to the training thread, which raises it
                preparation.failure = f"{type(error).__name__}: {error}"
            then()

        preparation = _Preparation(
            plan.generation, threading.Thread(target=connect, name="prepare", daemon=True)
        )
        self._preparation = preparation
        preparation.thread.start()

    def join(self, plan: Plan, uid: str) -> None:
        """Connect, or take the connections that were prepared."""
        rank = _rank(plan, uid)
        with self._lock:
            self._current = plan.generation
        self._await_preparation(plan.generation)
        # With an address Horovod would ask the store even when there is nobody to meet.
        os.environ.pop("HOROVOD_GLOO_RENDEZVOUS_ADDR", None)
        if plan.size > 1:
            os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"] = LOOPBACK
        os.environ.update(_topology(plan, rank))
        self._tell_key(plan)
        self.rank, self.size = rank, plan.size
        before = set() if self._library.has(ABORTS) else own_sockets()
        try:
            self._library.init()
        except (ValueError, RuntimeError) as error:
            self.leave()
            why = self._library.failure() or plain(str(error))
            raise RingBroken(f"the ring of generation {plan.generation} did not form: {why}") from error
        if not self._library.has(ABORTS):
            self._sockets = own_sockets() - before

    def _tell_key(self, plan: Plan) -> None:
        """A connection of this ring proves that it knows the key before a byte of it counts."""
        if self._library.has(PROVES) and plan.size > 1:
            key = ring_key(self._token, plan.generation)
            self._library.call("ring_key", plan.generation, key, len(key))

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
        self._library.shutdown()
        with self._lock:
            self._current = 0
            self._sockets = set()

    def abort(self, generation: int) -> None:
        if self._library.has(ABORTS):
            # Holds also for an init of this generation that begins a moment later.
            self._library.call("abort_generation", generation)
            return
        with self._lock:
            if 0 < self._current <= generation:
                shut_down(self._sockets)

    def close(self) -> None:
        """It was left when training ended; a process that ends otherwise hangs up by ending."""

    # ------------------------------------------------------------------------------- without negotiation

    def gather(self, values: Sequence[int]) -> list[list[int]]:
        if not self._library.has(SENDS):
            return super().gather(values)
        mine = np.array(values, np.int64)
        table = np.empty((self.size, mine.size), np.int64)
        self._direct("exchange", mine.ctypes.data, table.ctypes.data, mine.nbytes)
        rows: list[list[int]] = table.tolist()
        return rows

    def share_state(self, arrays: Arrays, root: int, takers: Sequence[int]) -> Arrays:
        givers = [rank for rank in range(self.size) if rank not in takers]
        if not self._library.has(SENDS) or len(takers) > len(givers):
            return super().share_state(arrays, root, takers)  # then a tree is quicker
        received = [np.empty(array.shape, array.dtype) for array in arrays] if self.rank in takers else arrays
        for giver, taker in zip(givers, takers, strict=False):
            if self.rank not in (giver, taker):
                continue
            for parcel in parcels(received, alone=LARGE):
                if self.rank == giver:
                    packed = pack(parcel)
                    self._direct("send", taker, packed.ctypes.data, packed.nbytes)
                else:
                    packed = place_for(parcel)
                    self._direct("receive", giver, packed.ctypes.data, packed.nbytes)
                    unpack(packed, parcel)
        return received

    def _direct(self, what: str, *arguments: int) -> None:
        if not self._library.call(what, *arguments):
            raise RingBroken(self._library.failure())


def _rank(plan: Plan, uid: str) -> int:
    rank = plan.rank_of(uid)
    if rank is None:
        raise ValueError(f"{uid} is not in the plan of generation {plan.generation}")
    return rank


def _topology(plan: Plan, rank: int) -> dict[str, str]:
    """What Horovod wants to know about hosts, from the plan."""
    numbers = [number for place in places(plan, rank).values() for number in place]
    return {
        **{f"HOROVOD_{key}": str(number) for key, number in zip(PLACE_IN_RING, numbers, strict=True)},
        "HOROVOD_HOSTNAME": plan.members[rank].host,
        "HOROVOD_EDL_GENERATION": str(plan.generation),
    }
