"""Which records a step uses, and which of them a rank reads: arithmetic, no queue.

Position counts records over all epochs, so the whole data state of a job is one integer. The order of an
epoch is a function of (seed, epoch): blocks of neighbouring records are permuted, then records are shuffled
inside windows of several blocks, so that reading stays sequential enough for a disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random

BLOCK_RECORDS = 1024
"""Records that stay neighbours on disk. Large enough for sequential reads, small enough to mix well."""

WINDOW_BLOCKS = 16
"""Blocks whose records are shuffled together: 16 Ki records are in flight at a time."""


@dataclass(frozen=True)
class Span:
    """A half-open range of positions inside one epoch: `epoch * records + [start, stop)`."""

    epoch: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Order:
    """The order in which each epoch visits the records."""

    records: int
    seed: int = 0
    shuffle: bool = True
    block: int = BLOCK_RECORDS
    window_blocks: int = WINDOW_BLOCKS

    def __post_init__(self) -> None:
        if self.records < 1:
            raise ValueError(f"a data set needs at least one record, got {self.records}")
        if self.block < 1 or self.window_blocks < 1:
            raise ValueError(f"blocks and windows are at least 1, got {self.block}, {self.window_blocks}")

    def indices(self, span: Span) -> list[int]:
        """Record indices of the span, in training order."""
        if not 0 <= span.start <= span.stop <= self.records:
            raise ValueError(f"{span} is outside an epoch of {self.records} records")
        if not self.shuffle:
            return list(range(span.start, span.stop))
        size = self.block * self.window_blocks
        out: list[int] = []
        at = span.start
        while at < span.stop:
            number, offset = divmod(at, size)
            window = _window(self, span.epoch, number)
            taken = window[offset : offset + span.stop - at]
            out.extend(taken)
            at += len(taken)
        return out


@dataclass(frozen=True)
class ItemOrder(Order):
    """Records that come in whole items, of which only the order is shuffled.

    Every item has as many records, but for the last one; where that is shorter it stays the last.
    """

    item: int = 1

    def indices(self, span: Span) -> list[int]:
        """Record indices of the span, in training order."""
        whole = self.records // self.item
        if not self.shuffle or not whole:
            return super().indices(span)
        order = _items(Order(whole, self.seed), span.epoch)
        places = (divmod(at, self.item) for at in range(span.start, span.stop))
        return [
            (order[number] if number < whole else number) * self.item + offset for number, offset in places
        ]


@lru_cache(maxsize=4)
def _items(order: Order, epoch: int) -> tuple[int, ...]:
    return tuple(order.indices(Span(epoch, 0, order.records)))


@lru_cache(maxsize=8)
def _epoch_layout(order: Order, epoch: int) -> tuple[int, tuple[int, ...]]:
    """Where block 0 begins in this epoch, and the order of the blocks.

    The last block may be short and always comes last; turning the data set by a random offset makes it
    another set of records in each epoch.
    """
    random = Random(f"{order.seed}/{epoch}")
    turn = random.randrange(order.records)
    whole = list(range(order.records // order.block))
    random.shuffle(whole)
    if order.records % order.block:
        whole.append(order.records // order.block)
    return turn, tuple(whole)


@lru_cache(maxsize=8)
def _window(order: Order, epoch: int, number: int) -> list[int]:
    turn, blocks = _epoch_layout(order, epoch)
    first = number * order.window_blocks
    records = [
        (record + turn) % order.records
        for block in blocks[first : first + order.window_blocks]
        for record in range(block * order.block, min((block + 1) * order.block, order.records))
    ]
    Random(f"{order.seed}/{epoch}/{number}").shuffle(records)
    return records


@dataclass(frozen=True)
class Schedule:
    """The steps of a job: where each begins and ends, and who reads what."""

    order: Order
    epochs: int
    max_step: int = 0
    """Stop after this many steps; 0 means after the last epoch."""

    end: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "end", self.order.records * self.epochs)

    def finished(self, step: int, position: int) -> bool:
        """Whether nothing is left to train after `step` updates that used `position` records."""
        return position >= self.end or (self.max_step > 0 and step >= self.max_step)

    def span(self, position: int, batch: int) -> Span:
        """The global batch that begins at `position`: at most `batch` records, never across two epochs."""
        if batch < 1:
            raise ValueError(f"a batch needs at least one record, got {batch}")
        if not 0 <= position < self.end:
            raise ValueError(f"position {position} is outside [0, {self.end})")
        epoch, start = divmod(position, self.order.records)
        return Span(epoch, start, min(start + batch, self.order.records))

    def steps(self, batch: int) -> int:
        """How many steps the job takes with a constant global batch."""
        return self.steps_left(0, 0, batch)

    def steps_left(self, step: int, position: int, batch: int) -> int:
        """How many steps are still to make after `step` updates that used `position` records."""
        if batch < 1:
            raise ValueError(f"a batch needs at least one record, got {batch}")
        if self.finished(step, position):
            return 0
        epoch, into_epoch = divmod(position, self.order.records)
        this_epoch = -(-(self.order.records - into_epoch) // batch)
        left = this_epoch + (self.epochs - epoch - 1) * -(-self.order.records // batch)
        return min(left, self.max_step - step) if self.max_step else left


def share(span: Span, rank: int, size: int) -> Span:
    """The part of a global batch that one rank reads: contiguous, sizes differ by at most one record."""
    if not 0 <= rank < size:
        raise ValueError(f"rank {rank} is outside a ring of {size}")
    small, extra = divmod(len(span), size)
    start = span.start + rank * small + min(rank, extra)
    return Span(span.epoch, start, start + small + (rank < extra))


def micro_batches(span: Span, limit: int) -> Iterator[Span]:
    """Cut a share into the fewest parts of at most `limit` records, of nearly equal size."""
    if limit < 1:
        raise ValueError(f"a micro-batch needs at least one record, got a limit of {limit}")
    parts = -(-len(span) // limit)
    for part in range(parts):
        yield share(span, part, parts)


def virtual_ranks(rank: int, size: int, count: int) -> range:
    """Of `count` virtual ranks, those that one rank works for: neighbours, as evenly as it goes."""
    own = share(Span(0, 0, count), rank, size)
    return range(own.start, own.stop)


def evened(rank: int, size: int, count: int) -> float:
    """What the time of a rank's virtual ranks is multiplied by, so that it compares with that of others who
    have more or fewer: 0 for one without any, 1 where there are no virtual ranks."""
    if not count:
        return 1.0
    own = len(virtual_ranks(rank, size, count))
    return count / size / own if own else 0.0
