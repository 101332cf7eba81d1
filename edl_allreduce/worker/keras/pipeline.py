"""From record indices to tensors, off the training thread.

The user's `feed` is a tf.data pipeline over raw records. It is applied to one micro-batch at a time inside a
traced function, so a shuffle in it stays inside the micro-batch and every record is accounted for.
"""

from __future__ import annotations

import inspect
import itertools
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import tensorflow as tf

from edl_allreduce.core.schedule import Schedule, Span, micro_batches, share, virtual_ranks
from edl_allreduce.data import Records, RecordSource
from edl_allreduce.errors import DataError, ModelError
from edl_allreduce.worker.keras.private import converted
from edl_allreduce.worker.keras.zoo import Mode
from edl_allreduce.worker.loop.steps import MicroBatch, StepData
from edl_allreduce.worker.records import GoodRecords, read_records

PREFETCH_STEPS = 4
"""Parsed steps that wait for the ring: enough to hide a slow record or two, few enough for the memory."""
READ_STEPS = 2
"""Read steps that wait for a parser: reading goes on while others are parsed."""
PARSERS = 2
"""Steps parsed at the same time: measured, two read 1.6 times as fast as one (`benchmarks.data`)."""
CHANCE = re.compile(
    r"Random(Uniform|UniformInt|StandardNormal|Shuffle|Gamma|Poisson|PoissonV2)|Multinomial"
    r"|(Parameterized)?TruncatedNormal|SampleDistortedBoundingBox(V2)?|Rng.*|Assign.*VariableOp"
    r"|Stateful(?!PartitionedCall).*"
)
"""Operations of TensorFlow that draw from a state of their own, or change one as Keras' generators do."""
Item = TypeVar("Item")


class Parser:
    """Applies `feed` to the records of one micro-batch. Traced once per kind of records."""

    def __init__(
        self, feed: Callable[..., Any], mode: Mode, metadata: Any, *, refuses_chance: bool = False
    ) -> None:
        """`refuses_chance`: the same records must always give the same features."""
        self._refuses_chance = refuses_chance
        self._feed = converted(feed)
        code = getattr(inspect.unwrap(feed), "__code__", None)
        self._where = f" ({code.co_filename}, line {code.co_firstlineno})" if code is not None else ""
        self._mode = mode
        self._metadata = metadata
        self._parse = tf.function(self._graph, reduce_retracing=True, autograph=False)
        self._signature: Any = None

    def __call__(self, records: Records, count: int) -> tuple[Any, Any]:
        tensors = _tensors(records)
        if self._signature is None:
            self._signature = tf.nest.map_structure(
                lambda t: tf.TensorSpec([None, *t.shape[1:]], t.dtype), tensors
            )
            self._parse = tf.function(self._graph, input_signature=[self._signature], autograph=False)
            if self._refuses_chance:
                self._refuse(random_operations(self._parse.get_concrete_function().graph))
        batch = self._parse(tensors)
        given = int(tf.nest.flatten(batch)[0].shape[0])
        if given != count:
            raise ModelError(
                f"feed turned {count} records into {given} elements; it must give one element per record "
                "(no filter, repeat or batch), since every record counts once per epoch. "
                "Leave unwanted records out of the data, or give them weight 0 in the loss."
            )
        if self._mode is Mode.PREDICTION:
            return batch, None
        if not (isinstance(batch, tuple) and len(batch) == 2):
            got = f"{len(batch)} parts" if isinstance(batch, tuple) else type(batch).__name__
            raise ModelError(
                f"feed must yield (features, labels), got {got}. Weights of records go with the labels, e.g. "
                "(features, {'label': …, 'weight': …}), and are multiplied in loss()."
            )
        return batch

    def _graph(self, tensors: Any) -> Any:
        dataset = tf.data.Dataset.from_tensor_slices(tensors)
        fed = self._feed(dataset, self._mode, self._metadata)
        if not isinstance(fed, tf.data.Dataset):
            raise ModelError(
                f"feed must return the dataset, got {type(fed).__name__}{self._where}; end it with "
                "`return dataset.map(…)`"
            )
        return fed.batch(tf.int32.max).get_single_element()

    def _refuse(self, drawing: list[str]) -> None:
        if drawing:
            raise ModelError(
                f"feed{self._where} draws random numbers ({', '.join(drawing)}), whose order depends on who "
                "reads what, so --reproducible refuses it. Put the augmentation into the model "
                "(keras.layers.RandomFlip and the like), where each part of a step has its own."
            )


def random_operations(graph: Any) -> list[str]:
    """The operations of a traced feed that keep a state of chance; `tf.random.stateless_…` has none."""
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(node for f in definition.library.function for node in f.node_def)]
    return sorted({node.op for node in nodes if CHANCE.fullmatch(node.op)})


def _tensors(records: Records) -> Any:
    if isinstance(records, dict):
        return {name: tf.convert_to_tensor(column) for name, column in records.items()}
    return tf.constant(records, tf.string)


class Ahead(Iterator[Item]):
    """Items that a thread makes ahead of whoever takes them; what it meets is raised there.

    One at first, and more only after some were taken: while a ring forms, its members need their processors
    for that.
    """

    def __init__(self, items: Iterator[Item], room: int, name: str) -> None:
        self._room = room
        self._made: deque[Item | Exception] = deque()
        self._taken = 0
        self._closed = False
        self._changed = threading.Condition()
        threading.Thread(target=self._run, args=(items,), name=name, daemon=True).start()

    def __next__(self) -> Item:
        with self._changed:
            self._changed.wait_for(lambda: self._made)
            # The last word is said to everybody who asks.
            item = self._made[0] if isinstance(self._made[0], Exception) else self._made.popleft()
            self._taken += 1
            self._changed.notify_all()
        if isinstance(item, Exception):
            raise item
        return item

    def close(self) -> None:
        """The thread ends by itself after the item at hand; nobody waits for it in a re-form."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run(self, items: Iterator[Item]) -> None:
        end: Exception = StopIteration()
        try:
            for item in items:
                with self._changed:
                    self._made.append(item)
                    self._changed.notify_all()
                    self._changed.wait_for(self._wanted)
                    if self._closed:
                        break
        except Exception as error:  # noqa: BLE001  handed over to the thread that takes, which raises it
            end = error
        with self._changed:
            self._made.append(end)
            self._changed.notify_all()

    def _wanted(self) -> bool:
        return self._closed or len(self._made) < min(self._room, 1 + self._taken // 4)


@dataclass(frozen=True)
class _Raw:
    """This rank's part of one global batch as it was read."""

    span: Span
    parts: list[tuple[int, GoodRecords]]
    """Each with its virtual rank, where there are any."""


class Pipeline:
    """The steps of one rank in one generation, read ahead by a thread and parsed by others."""

    def __init__(
        self,
        source: RecordSource,
        schedule: Schedule,
        parser: Parser,
        *,
        rank: int,
        size: int,
        step: int,
        position: int,
        global_batch: int,
        minibatch: int,
        bad_records_allowed: int,
        virtual: int = 0,
    ) -> None:
        """`virtual`: cut a step into so many parts, whatever the ring's size; 0: cut this rank's own part."""
        self._source = source
        self._schedule = schedule
        self._parser = parser
        self._rank, self._size = rank, size
        self._global_batch = global_batch
        self._minibatch = minibatch
        self._allowed = bad_records_allowed
        self._virtual = virtual
        self._own_virtual_ranks = virtual_ranks(rank, size, virtual)
        self._raw = Ahead(self._reads(step, position), READ_STEPS, "reader")
        self._parsed = Ahead(self._parse_all(), PREFETCH_STEPS, "parser")

    def take(self) -> StepData:
        """The next step's data; raises what reading or parsing met."""
        return next(self._parsed)

    def close(self) -> None:
        """Read and parse no more."""
        self._parsed.close()
        self._raw.close()

    def _reads(self, step: int, position: int) -> Iterator[_Raw]:
        while not self._schedule.finished(step, position):
            span = self._schedule.span(position, self._global_batch)
            yield self._read(span)
            step, position = step + 1, position + len(span)

    def _read(self, span: Span) -> _Raw:
        def read(part: Span) -> GoodRecords:
            indices = self._schedule.order.indices(part)
            return read_records(self._source, indices, bad_allowed=self._allowed)

        return _Raw(span, [(number, read(part)) for number, part in self._parts(span)])

    def _parts(self, span: Span) -> Iterator[tuple[int, Span]]:
        """What this rank reads of a step."""
        if self._virtual:
            parts = ((v, share(span, v, self._virtual)) for v in self._own_virtual_ranks)
            yield from ((number, part) for number, part in parts if len(part))
        else:
            for part in micro_batches(share(span, self._rank, self._size), self._minibatch):
                yield 0, part

    def _parse_all(self) -> Iterator[StepData]:
        """Two at a time, in order; the first one alone, since a ring may be waiting for it."""
        yield from map(self._parse, itertools.islice(self._raw, 1))
        under_way: deque[Future[StepData]] = deque()
        with ThreadPoolExecutor(PARSERS, "parser") as parsers:
            for raw in self._raw:
                under_way.append(parsers.submit(self._parse, raw))
                if len(under_way) == PARSERS:
                    yield under_way.popleft().result()
            for last in under_way:
                yield last.result()

    def _parse(self, raw: _Raw) -> StepData:
        parts = [
            MicroBatch(*self._parser(part.records, part.count), part.count, number)
            for number, part in raw.parts
            if part.count
        ]
        read = [part for _, part in raw.parts]
        fed = [index for part in read for index in part.indices]
        bad = [index for part in read for index in part.left_out]
        return StepData(raw.span, parts, fed, bad, tuple(p for part in read for p in part.problems))


def check_data(source: RecordSource) -> None:
    """A job without records cannot begin."""
    if len(source) == 0:
        raise DataError("the training data holds no record; check --training_data")
