"""Horovod's operations on TensorFlow's tensors, whoever made the ring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from edl_allreduce.worker.ring.base import Arrays
from edl_allreduce.worker.ring.errors import broken
from edl_allreduce.worker.ring.library import Library
from edl_allreduce.worker.ring.parcels import Bytes, parcels, unpack

HALVES = {tf.float16, tf.bfloat16}


class Collectives:
    """Sum, gather and broadcast, with negotiation: all ranks agree on each before it begins."""

    def __init__(self) -> None:
        self._library = Library()
        self.rank = 0
        self.size = 1

    def sum(self, tensors: Sequence[Any], group: int = 0, *, halved: bool = False) -> list[Any]:
        wire = tf.float16 if halved else _wire_type({tf.as_dtype(t.dtype) for t in tensors})
        # No value of this ring (rank, size) may enter the graph: it outlives the ring.
        summed = self._library.grouped_sum([tf.cast(t, wire) for t in tensors], group)
        return [tf.cast(s, t.dtype) for s, t in zip(summed, tensors, strict=True)]

    def gather(self, values: Sequence[int]) -> list[list[int]]:
        try:
            table = self._library.allgather(tf.constant([list(values)], tf.int64), name="edl.gather")
        except tf.errors.OpError as error:
            raise broken(error) from error
        return [[int(v) for v in row] for row in table.numpy()]

    def share_state(self, arrays: Arrays, root: int, takers: Sequence[int]) -> Arrays:
        received = [np.empty(array.shape, array.dtype) for array in arrays] if self.rank in takers else arrays
        for number, (parcel, places) in enumerate(zip(parcels(arrays), parcels(received), strict=True)):
            sent = self._broadcast(np.concatenate(parcel), root, number)
            if self.rank in takers:
                unpack(sent, places)
        return received

    def _broadcast(self, packed: Bytes, root: int, number: int) -> Bytes:
        name = f"edl.state.{number}"
        try:
            sent: Bytes = self._library.broadcast(tf.constant(packed), root, name=name).numpy()
        except tf.errors.OpError as error:
            raise broken(error) from error
        return sent


def _wire_type(kinds: set[Any]) -> Any:
    """One operation has one type: tensors of several travel in one that holds them all."""
    if kinds <= {tf.float32} | HALVES:
        return tf.float32
    if kinds == {tf.int32}:
        return tf.int32
    if all(kind.is_integer for kind in kinds):
        return tf.int64
    return tf.float64
