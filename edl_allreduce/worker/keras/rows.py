"""Gradients of tables of which a batch looks at few rows: only those rows travel.

A row that no rank has touched is zero on all of them, and so is its sum. Which rows somebody has touched is
summed first, as a number for each row; it is the same on all ranks, so all of them send the same rows, in the
same order, and what arrives is the sum that the whole table would have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import tensorflow as tf

from edl_allreduce.worker.keras.buckets import MEGABYTE

SMALL_TABLE = MEGABYTE
"""Up to here a table is sent as it is."""
NARROW = 16
"""Numbers in a row. To say which rows were touched costs as much as one number of each row."""
FEWEST = 64


class Sums(Protocol):
    """As `Ring.sum`, without its number."""

    def __call__(self, tensors: Sequence[Any]) -> list[Any]: ...


def worthwhile(shape: Sequence[int], size: int) -> bool:
    """Whether a table of this shape, with numbers of so many bytes, may travel as rows. It follows from the
    model alone: all ranks must come to the same."""
    height, *row = shape
    width = 1
    for length in row:
        width *= length
    return width >= NARROW and height * width * size > SMALL_TABLE


def ladder(height: int) -> list[int]:
    """How many rows are sent at once, the fewest first: Horovod agrees quickest on what has the size of the
    last step, so there are few sizes. The last one is the whole table."""
    sizes = [height]
    while sizes[-1] > FEWEST:
        sizes.append(sizes[-1] * 4 // 5)
    return sizes[::-1]


def summed(tables: Sequence[Any], sum_marks: Sums, sum_rows: Sums) -> list[Any]:
    """The sums of the tables over the ring: which rows, then these."""
    heights = [int(table.shape[0]) for table in tables]
    marks = tf.split(sum_marks([tf.concat([_touched(table) for table in tables], axis=0)])[0], heights)
    places = [tf.where(mark > 0) for mark in marks]
    sent = [_padded(tf.gather_nd(table, rows), table) for table, rows in zip(tables, places, strict=True)]
    arrived = sum_rows(sent)
    return [
        tf.scatter_nd(rows, total[: tf.shape(rows)[0]], tf.shape(table, tf.int64))
        for table, rows, total in zip(tables, places, arrived, strict=True)
    ]


def _touched(table: Any) -> Any:
    """1 for each row that is not zero; NaN is not."""
    return tf.cast(tf.reduce_any(tf.not_equal(table, 0), axis=list(range(1, len(table.shape)))), tf.int32)


def _padded(rows: Any, table: Any) -> Any:
    """With rows of zeros, up to the next size."""
    sizes = tf.constant(ladder(int(table.shape[0])))
    count = tf.shape(rows)[0]
    size = sizes[tf.searchsorted(sizes, [count])[0]]
    padded = tf.pad(rows, [[0, size - count], *([0, 0] for _ in table.shape[1:])])
    padded.set_shape([None, *table.shape[1:]])
    return padded
