"""Notes on worker pods: what the loss of one would cost. Nobody waits for them, and no order comes later
because of them: they are written beside the rounds, some at a time. A job that refuses them is left alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple

from edl_allreduce import outside
from edl_allreduce.clock import Clock
from edl_allreduce.cluster.kubernetes.names import Object
from edl_allreduce.controller.election import NotLeading
from edl_allreduce.controller.hands import NOTES, Hands, rule_for
from edl_allreduce.core.controller import price
from edl_allreduce.core.deadlines import doubled
from edl_allreduce.errors import ClusterError

log = logging.getLogger(__name__)

MOST_PRICES = 32
"""That are written at a time: each write wakes everybody who watches pods."""
FIRST_DELAY = 5.0
LONGEST_DELAY = 300.0
"""For which the pods of a job are left alone after a note on one was refused."""


class Price(NamedTuple):
    """Of one worker pod of a job."""

    job: str
    pod: Object
    cost: int


class _Trouble(NamedTuple):
    failures: int = 0
    not_before: float = 0.0


class Prices:
    """One batch of notes after the other."""

    def __init__(self, hands: Hands, refused: Callable[[], None], clock: Clock) -> None:
        """`refused` is told of each refusal."""
        self._hands, self._refused, self._clock = hands, refused, clock
        self._task: asyncio.Task[None] | None = None
        self._number = count(1)
        self._tried: dict[str, int] = {}
        """When pods had their turn, by uid, as the number of a try."""
        self._troubles: dict[str, _Trouble] = {}
        """By job."""

    def write(self, prices: Sequence[Price], term: int) -> None:
        """Begin with those that need a note, if the notes before them are written. The rest is for later."""
        if self._task is not None and not self._task.done():
            return
        uids, jobs = {_uid(one) for one in prices}, {one.job for one in prices}
        self._tried = {uid: number for uid, number in self._tried.items() if uid in uids}
        self._troubles = {job: trouble for job, trouble in self._troubles.items() if job in jobs}
        due = [one for one in prices if self._may(one.job) and _runs(one.pod) and _differs(one)]
        due.sort(key=lambda one: self._tried.get(_uid(one), 0))
        if due:
            self._task = asyncio.create_task(self._batch(due[:MOST_PRICES], term))

    async def written(self) -> None:
        """Until nothing is under way."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _may(self, job: str) -> bool:
        return self._clock.now() >= self._troubles.get(job, _Trouble()).not_before

    async def _batch(self, chosen: Sequence[Price], term: int) -> None:
        places = asyncio.Semaphore(NOTES)

        async def one_of_them(one: Price) -> None:
            async with places:
                if self._may(one.job):  # else another pod of it was refused just now
                    await self._note(one, term)

        await asyncio.gather(*map(one_of_them, chosen))

    async def _note(self, one: Price, term: int) -> None:
        self._tried[_uid(one)] = next(self._number)
        try:
            await self._hands.mark_price(one.pod, one.cost, term)
        except NotLeading:
            return
        except ClusterError as error:
            self._troubled(one.job, rule_for(error))
        except Exception as error:
            log.exception("a note on a pod of %s met a bug", one.job)
            self._troubled(one.job, f"a bug in the controller: {type(error).__name__}: {error}")
        else:
            self._troubles.pop(one.job, None)

    def _troubled(self, job: str, why: str) -> None:
        self._refused()
        if not self._may(job):
            return  # those that were under way at the same time count once
        failures = self._troubles.get(job, _Trouble()).failures
        until = self._clock.now() + doubled(FIRST_DELAY, failures, LONGEST_DELAY)
        self._troubles[job] = _Trouble(failures + 1, until)
        level = logging.DEBUG if failures else logging.WARNING
        log.log(level, "what workers of %s are worth could not be written: %s", job, outside.line(why, 1000))


def _uid(one: Price) -> str:
    return str(one.pod["metadata"]["uid"])


def _runs(pod: Object) -> bool:
    leaves = pod["metadata"].get("deletionTimestamp")
    return (pod.get("status") or {}).get("phase") == "Running" and not leaves


def _differs(one: Price) -> bool:
    before = (one.pod["metadata"].get("annotations") or {}).get(price.ANNOTATION, "")
    return price.worth_writing(before, one.cost)
