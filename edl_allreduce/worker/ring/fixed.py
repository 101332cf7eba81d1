"""The ring that horovodrun or mpirun made."""

from __future__ import annotations

from edl_allreduce.errors import RingBroken
from edl_allreduce.worker.ring.base import StandingRing
from edl_allreduce.worker.ring.collectives import Collectives
from edl_allreduce.worker.ring.errors import plain


class FixedRing(Collectives, StandingRing):
    """It is there from the beginning, once and for all."""

    def __init__(self) -> None:
        super().__init__()
        try:
            self._library.init()
        except (ValueError, RuntimeError) as error:
            raise RingBroken(f"the launcher's ring did not form: {plain(str(error))}") from error
        self.rank, self.size = self._library.rank(), self._library.size()

    def close(self) -> None:
        """Disconnect for good; MPI wants it before the process ends."""
        self._library.shutdown()
