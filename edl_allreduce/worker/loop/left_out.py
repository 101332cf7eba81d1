"""Bad records that were left out of the training: who is told, and how ranks without a master count them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from edl_allreduce.core import protocol
from edl_allreduce.errors import BadRecord
from edl_allreduce.worker.loop.orders import Orders
from edl_allreduce.worker.records import bad_records
from edl_allreduce.worker.ring.base import Ring

log = logging.getLogger(__name__)

SHOWN_BAD_RECORDS = 5
"""Of one step, in a worker's log."""
DATA = "training data"


class LeftOut:
    """The bad records that this worker knows of."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._met: set[int] = set()

    def tell(self, problems: Sequence[BadRecord]) -> None:
        """Who counts them hears each record whenever it is met, so that nobody has to remember."""
        for problem in problems[:SHOWN_BAD_RECORDS]:
            log.warning("left out: %s", problem)
        if problems:
            self._met.update(problem.index for problem in problems)
            self._orders.send(bad_records(DATA, problems))

    def share(self, ring: Ring) -> None:
        """At the end of each epoch, so that all ranks decide alike, whoever met which record."""
        mine = sorted(self._met)
        longest = max(count for (count,) in ring.gather([len(mine)]))
        if longest:
            rows = ring.gather([*mine, *[-1] * (longest - len(mine))])
            others = {index for row in rows for index in row if index >= 0} - self._met
            self._met |= others
            met = {index: (f"record {index}, which another rank met", 0) for index in others}
            self._orders.send(protocol.BadRecords(DATA, met))
