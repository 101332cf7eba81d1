"""Records for the ring at hand, and ahead for the one after it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edl_allreduce.core.protocol import Plan
from edl_allreduce.core.schedule import Schedule, Span, share
from edl_allreduce.worker.loop.orders import StartPoint
from edl_allreduce.worker.loop.settings import BatchSize
from edl_allreduce.worker.loop.steps import Feeds, MicroBatch, OpensFeed, StepData


@dataclass(frozen=True)
class _Ahead:
    """This worker's first records in a ring that has yet to begin."""

    generation: int
    start: StartPoint
    feed: Feeds


class Feeding:
    """Opens feeds. One that was opened ahead is taken if the ring begins where it was expected to."""

    def __init__(self, open_feed: OpensFeed, uid: str, batch: BatchSize) -> None:
        self._open_feed = open_feed
        self._uid = uid
        self._batch = batch
        self._ahead: _Ahead | None = None

    def open(self, plan: Plan, start: StartPoint) -> Feeds:
        """Read from there on, anew."""
        step, position = start
        rank = plan.rank_of(self._uid)
        assert rank is not None, "whoever has no seat reads nothing"
        return self._open_feed(
            rank=rank, size=plan.size, step=step, position=position, global_batch=self._batch.of(plan.size)
        )

    def open_ahead(self, plan: Plan, start: StartPoint) -> None:
        """Begin to read for a ring that comes soon."""
        self._ahead = _Ahead(plan.generation, start, self.take(plan, start))

    def take(self, plan: Plan, start: StartPoint) -> Feeds:
        """The records from there on, which are at hand already if the boundary was known."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            if (ahead.generation, ahead.start) == (plan.generation, start):
                return ahead.feed
            ahead.feed.close()
        return self.open(plan, start)


def boundary_at(schedule: Schedule, start: StartPoint, batch: int, boundary: int | None) -> StartPoint | None:
    """Where the next ring begins that follows this one after the step `boundary`; None if the job is over by
    then or the boundary is here."""
    step, position = start
    while step != boundary and not schedule.finished(step, position):
        position += len(schedule.span(position, batch))
        step += 1
    if step == start[0] or schedule.finished(step, position):
        return None
    return step, position


class IndexFeed:
    """The steps of one rank in one generation; nothing is read here, whoever trains reads by index."""

    def __init__(
        self, schedule: Schedule, *, rank: int, size: int, step: int, position: int, global_batch: int
    ) -> None:
        self._schedule = schedule
        self._rank, self._size = rank, size
        self._position = position
        self._batch = global_batch

    def take(self) -> StepData:
        span = self._schedule.span(self._position, self._batch)
        own = self._schedule.order.indices(share(span, self._rank, self._size))
        # More workers than records in the last batch of an epoch: somebody has none and lends a hand to one
        # that does not count, so that user code never meets an empty batch.
        fed = own or self._schedule.order.indices(Span(span.epoch, span.start, span.start + 1))
        self._position += len(span)
        return StepData(span, [MicroBatch(np.array(fed), None, len(own))], own, [])

    def close(self) -> None:
        """Nothing was opened."""
