"""Ranks as threads of this process: real models and real steps, only the ring is a fake."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl_allreduce.core.protocol import Plan, Seat
from edl_allreduce.core.schedule import Span, share, virtual_ranks
from edl_allreduce.testing.fake_ring import FakeRing, Meeting

VIRTUAL = 6
BATCH = 22
"""Not a multiple of the virtual ranks: their parts differ in size."""


def records(step: int) -> tuple[Any, Any]:
    """The batch of a step."""
    random = np.random.default_rng(step)
    return random.normal(size=(BATCH, 8, 8, 1)).astype(np.float32), random.integers(0, 3, BATCH)


def parts_of(step: int, rank: int, size: int) -> list[Any]:
    """What one rank computes of it."""
    import tensorflow as tf

    from edl_allreduce.worker.loop.steps import MicroBatch

    x, y = records(step)
    spans = [(v, share(Span(0, 0, BATCH), v, VIRTUAL)) for v in virtual_ranks(rank, size, VIRTUAL)]
    return [
        MicroBatch(tf.constant(x[s.start : s.stop]), tf.constant(y[s.start : s.stop]), len(s), v)
        for v, s in spans
    ]


@dataclass
class Rank:
    """One thread's trainer and ring."""

    trainer: Any
    ring: FakeRing

    def step(self, number: int) -> Any:
        from edl_allreduce.worker.loop.steps import StepInput

        ring = self.ring
        parts = parts_of(number, ring.rank, ring.size)
        return self.trainer.step(StepInput(number, parts, 0, BATCH, 1, ring.rank, ring.size))


class Company:
    """Trainers of one model, of which the first so many make steps together."""

    def __init__(self, make: Callable[[], Any], optimizer: Callable[[], Any], most: int = 4) -> None:
        from edl_allreduce.worker.keras.reproducible import ReproducibleTrainer
        from edl_allreduce.worker.keras.zoo import ModelDefinition

        definition = ModelDefinition(
            path=Path("test.py"), model=make, loss=_loss, optimizer=optimizer, feed=lambda d, m, i: d
        )
        self._meeting = Meeting()
        self._generation = 0
        self.ranks = []
        for _ in range(most):
            ring = self._meeting.ring()
            trainer = ReproducibleTrainer(definition, ring, seed=3, virtual_ranks=VIRTUAL)
            ring.join(Plan(0, (Seat("0", 0, ""),)), "0")
            trainer.build(parts_of(0, 0, VIRTUAL)[0])
            ring.leave()
            self.ranks.append(Rank(trainer, ring))
            self._generation += 1
            self._meeting = Meeting()
        self.beginning = self.ranks[0].trainer.state()

    def run(self, steps: Sequence[int], size: int, between: Callable[[Rank, int], None] | None = None) -> Any:
        """Steps of a ring of so many; what each rank's last step gave, or what it raised."""
        meeting, members = Meeting(), self.ranks[:size]
        self._generation += 1
        plan = Plan(self._generation, tuple(Seat(str(i), i, "") for i in range(size)))
        results: list[Any] = [None] * size

        def go(index: int, rank: Rank) -> None:
            rank.ring._meeting = meeting
            rank.ring.join(plan, str(index))
            try:
                for number in steps:
                    if between is not None:
                        between(rank, number)
                    results[index] = rank.step(number)
            except Exception as error:  # noqa: BLE001  told to the test's thread
                results[index] = error

        threads = [threading.Thread(target=go, args=pair, daemon=True) for pair in enumerate(members)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        for rank in members:
            rank.ring.leave()
        return results

    def restore(self, state: Sequence[Any]) -> None:
        for rank in self.ranks:
            rank.trainer.restore(state)


def _loss(labels: Any, predictions: Any) -> Any:
    import keras

    return keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)


def same_bits(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        for a, b in zip(one, other, strict=True)
    )


@pytest.fixture(scope="session")
def company() -> Callable[..., Company]:
    return Company
