"""From record indices to tensors, off the training thread.

The user's `feed` is a tf.data pipeline over raw records. It is applied to one micro-batch at a time inside a
traced function, so a shuffle in it stays inside the micro-batch and every record is accounted for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import Full, Queue
from typing import Any

import tensorflow as tf

from edl_allreduce.core.schedule import Schedule, Span, micro_batches, share
from edl_allreduce.data import Records, RecordSource, read_good
from edl_allreduce.errors import DataError, ModelError
from edl_allreduce.worker.zoo import Mode

PREFETCH_STEPS = 4


@dataclass(frozen=True)
class MicroBatch:
    """What one forward pass gets."""

    features: Any
    labels: Any
    records: int


@dataclass(frozen=True)
class StepData:
    """This rank's part of one global batch."""

    span: Span
    """The whole global batch."""
    parts: list[MicroBatch]
    records: list[int]
    """Indices that were read and fed."""
    bad: list[int]


class Parser:
    """Applies `feed` to the records of one micro-batch. Traced once per kind of records."""

    def __init__(self, feed: Callable[..., Any], mode: Mode, metadata: Any) -> None:
        self._feed = feed
        self._mode = mode
        self._metadata = metadata
        self._parse = tf.function(self._graph, reduce_retracing=True)
        self._signature: Any = None

    def __call__(self, records: Records, count: int) -> tuple[Any, Any]:
        tensors = _tensors(records)
        if self._signature is None:
            self._signature = tf.nest.map_structure(
                lambda t: tf.TensorSpec([None, *t.shape[1:]], t.dtype), tensors
            )
            self._parse = tf.function(self._graph, input_signature=[self._signature])
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
            raise ModelError(f"feed must yield (features, labels), got {type(batch).__name__}")
        return batch

    def _graph(self, tensors: Any) -> Any:
        dataset = tf.data.Dataset.from_tensor_slices(tensors)
        fed = self._feed(dataset, self._mode, self._metadata)
        return fed.batch(tf.int32.max).get_single_element()


def _tensors(records: Records) -> Any:
    if isinstance(records, dict):
        return {name: tf.convert_to_tensor(column) for name, column in records.items()}
    return tf.constant(records, tf.string)


class Pipeline:
    """The steps of one rank in one generation, read ahead by a thread."""

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
    ) -> None:
        self._source = source
        self._schedule = schedule
        self._parser = parser
        self._rank, self._size = rank, size
        self._global_batch = global_batch
        self._minibatch = minibatch
        self._allowed = bad_records_allowed
        self._queue: Queue[StepData | BaseException] = Queue(PREFETCH_STEPS)
        self._closed = threading.Event()
        threading.Thread(target=self._run, args=(step, position), name="reader", daemon=True).start()

    def take(self) -> StepData:
        """The next step's data; raises what the reader met."""
        item = self._queue.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def close(self) -> None:
        """The reader ends by itself after the record at hand; nobody waits for it in a re-form."""
        self._closed.set()

    def _run(self, step: int, position: int) -> None:
        try:
            for data in self._steps(step, position):
                if not self._put(data):
                    return
        except Exception as error:  # noqa: BLE001  handed over to the training thread, which raises it
            self._put(error)

    def _put(self, item: StepData | BaseException) -> bool:
        while not self._closed.is_set():
            try:
                self._queue.put(item, timeout=0.1)
            except Full:
                continue
            return True
        return False

    def _steps(self, step: int, position: int) -> Iterator[StepData]:
        while not self._schedule.finished(step, position):
            span = self._schedule.span(position, self._global_batch)
            yield self._read(span)
            step, position = step + 1, position + len(span)

    def _read(self, span: Span) -> StepData:
        parts, used, skipped = [], [], []
        for part in micro_batches(share(span, self._rank, self._size), self._minibatch):
            indices = self._schedule.order.indices(part)
            if self._allowed:
                records, bad = read_good(self._source, indices)
                lost = {b.index for b in bad}
                skipped += [i for i in indices if i in lost]
                indices = [i for i in indices if i not in lost]
            else:
                records = self._source.read(indices)
            if not indices:
                continue
            features, labels = self._parser(records, len(indices))
            parts.append(MicroBatch(features, labels, len(indices)))
            used += indices
        return StepData(span, parts, used, skipped)


def check_data(source: RecordSource) -> None:
    """A job without records cannot begin."""
    if len(source) == 0:
        raise DataError("the training data holds no record; check --training_data")
