"""Tables of which a batch looks at few rows: these rows travel, and the weights are those of whole tables."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from edl_allreduce.errors import RingBroken
from edl_allreduce.spec import GradientCompression
from edl_allreduce.testing.fake_ring import Break, FakeRing, Meeting
from edl_allreduce.worker.keras import rows
from edl_allreduce.worker.keras.trainer import Trainer
from edl_allreduce.worker.keras.zoo import ModelDefinition
from edl_allreduce.worker.loop.steps import MicroBatch, StepInput

pytestmark = pytest.mark.tensorflow

WORDS, WIDTH, LENGTH, BATCH = 20_000, 16, 6, 8
MARKS, ROWS = 1, 2
"""The groups that are summed beside the last one, of number 0."""


class Rank(FakeRing):
    """One of two in one process, inside TensorFlow's graphs. Notes the shapes that it sends."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        super().__init__(meeting)
        self.rank, self.size, self.generation = rank, 2, 1
        self.sent: list[tuple[int, list[tuple[int, ...]]]] = []
        self.sums = 0
        self.kinds: set[tuple[str, tuple[int, ...]]] = set()
        """Of what it sends: the type, and the shape, of rows that of one row."""

    def sum(self, tensors: Sequence[Any], group: int = 0, *, halved: bool = False) -> list[Any]:
        def exchange(*values: Any) -> list[Any]:
            self.sent.append((group, [v.shape for v in values]))
            self.sums += 1
            self.kinds |= {(v.dtype.name, v.shape[-1:]) for v in values}
            return FakeRing.sum(self, values)

        wire = [tf.cast(t, tf.float16) for t in tensors] if halved else list(tensors)
        totals = tf.numpy_function(exchange, wire, [t.dtype for t in wire])
        for total, tensor in zip(totals, tensors, strict=True):
            total.set_shape(tensor.shape)
        return [tf.cast(total, t.dtype) for total, t in zip(totals, tensors, strict=True)]


def model() -> Any:
    return keras.Sequential(
        [
            keras.layers.Input((LENGTH,), dtype="int32"),
            keras.layers.Embedding(WORDS, WIDTH),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(3),
        ]
    )


def loss(labels: Any, predictions: Any) -> Any:
    return keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)


def batch(step: int) -> MicroBatch:
    random = np.random.default_rng(step)
    x = random.integers(0, WORDS, (BATCH, LENGTH), dtype=np.int32)
    x[:, 0] = 7  # a word of every record
    return MicroBatch(tf.constant(x), tf.constant(random.integers(0, 3, BATCH)), BATCH)


def part(step: int, start: int, stop: int) -> MicroBatch:
    whole = batch(step)
    return MicroBatch(whole.features[start:stop], whole.labels[start:stop], stop - start)


class Pair:
    """Two trainers that sum with each other."""

    def __init__(self, **settings: Any) -> None:
        self._meeting = Meeting()
        self.rings = [Rank(self._meeting, rank) for rank in range(2)]
        self.trainers = [self._trainer(ring, settings) for ring in self.rings]
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(lambda trainer: trainer.build(batch(0)), self.trainers))
        for ring in self.rings:
            ring.sent.clear()

    def _trainer(self, ring: Rank, settings: dict[str, Any]) -> Trainer:
        definition = ModelDefinition(
            path=Path("test.py"),
            model=model,
            loss=loss,
            optimizer=lambda: keras.optimizers.Adam(0.01),
            feed=lambda dataset, mode, metadata: dataset,
        )
        return Trainer(definition, ring, seed=3, **settings)

    def step(self, number: int, cuts: Sequence[Sequence[int]]) -> list[Any]:
        """`cuts`: where the parts of each rank begin and end. What each rank got, an error included."""
        with ThreadPoolExecutor(2) as threads:
            return list(threads.map(lambda rank: self._one(number, rank, cuts[rank]), range(2)))

    def _one(self, number: int, rank: int, cuts: Sequence[int]) -> Any:
        parts = [part(number, *edge) for edge in itertools.pairwise(cuts)]
        offset = cuts[0] if cuts else 0
        try:
            return self.trainers[rank].step(StepInput(number, parts, offset, BATCH))
        except RingBroken as error:
            return error


STEPS: list[list[list[int]]] = [
    [[0, 4], [4, 8]],
    [[0, 3], [3, 5, 8]],
    [[0, 4, 8], []],
    [[], [0, 8]],
]
"""Equal shares, odd ones in several parts, and ranks without a record."""


@pytest.fixture(scope="module")
def whole() -> tuple[list[float], list[Any]]:
    """The losses and the state that whole tables lead to."""
    pair = Pair(bucket_mb=math.inf)
    losses = [pair.step(number, cuts)[0].loss for number, cuts in enumerate(STEPS)]
    for ring in pair.rings:
        assert [group for group, shapes in ring.sent if (WORDS, WIDTH) in shapes] == [0] * len(STEPS)
    return losses, pair.trainers[0].state()


@pytest.mark.parametrize("bucket_mb", [0.0, 0.000001])
def test_rows_give_the_bits_of_whole_tables(bucket_mb: float, whole: tuple[list[float], list[Any]]) -> None:
    pair, (losses, state) = Pair(bucket_mb=bucket_mb), whole
    for number, cuts in enumerate(STEPS):
        assert [result.loss for result in pair.step(number, cuts)] == [losses[number]] * 2
    for trainer in pair.trainers:
        for expected, got in zip(state, trainer.state(), strict=True):
            np.testing.assert_array_equal(got, expected)
    for ring in pair.rings:
        tables = [shape for _, shapes in ring.sent for shape in shapes if shape[1:] == (WIDTH,)]
        assert len(tables) == len(STEPS) and max(height for height, _ in tables) < WORDS / 100


def test_a_break_between_marks_and_rows_leaves_the_state_untouched() -> None:
    pair = Pair()
    before = [trainer.state() for trainer in pair.trainers]
    pair.rings[0].breaks = [Break("sum", pair.rings[0].sums + 1)]
    results = pair.step(0, STEPS[0])
    assert all(isinstance(result, RingBroken) for result in results)
    assert [group for group, _ in pair.rings[0].sent] == [MARKS, ROWS], "it broke, and where it should"
    for trainer, arrays in zip(pair.trainers, before, strict=True):
        for expected, got in zip(arrays, trainer.state(), strict=True):
            np.testing.assert_array_equal(got, expected)


def test_compressed_rows_are_rounded_and_marks_are_not(whole: tuple[list[float], list[Any]]) -> None:
    pair, (_, state) = Pair(compression=GradientCompression.FP16), whole
    for number, cuts in enumerate(STEPS):
        pair.step(number, cuts)
    rounded = pair.trainers[1].state()
    moved = [np.abs(x - y).max() for x, y in zip(state, rounded, strict=True) if x.dtype == np.float32]
    assert 0 < max(moved) < 0.02
    assert ("int32", (WORDS,)) in pair.rings[0].kinds and ("float16", (WIDTH,)) in pair.rings[0].kinds


@pytest.mark.parametrize("height", [1, 64, 65, 20_000, 3_000_000])
def test_there_are_few_sizes_and_the_last_one_is_the_table(height: int) -> None:
    sizes = rows.ladder(height)
    assert sizes == sorted(set(sizes)) and sizes[-1] == height and sizes[0] <= rows.FEWEST
    assert len(sizes) <= 60
    assert all(larger <= smaller * 1.3 for smaller, larger in itertools.pairwise(sizes))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((20_000, 16), True), ((20_000, 8), False), ((1_000, 16), False), ((5_000, 4, 16), True)],
)
def test_small_and_narrow_tables_are_sent_as_they_are(shape: tuple[int, ...], expected: bool) -> None:
    assert rows.worthwhile(shape, 4) is expected
