"""What the user's loop and the engine say to each other. One of the two runs while the other waits."""

from __future__ import annotations

from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from edl_allreduce.worker.loop.orders import Ending
from edl_allreduce.worker.loop.steps import StepInput


@dataclass(frozen=True)
class Offer:
    """Engine to loop: train this step. It has one part, whose features are the indices and whose records are
    how many of them count."""

    step: StepInput


@dataclass(frozen=True)
class Brought:
    """Loop to engine: this worker's gradients."""

    tensors: list[Any]
    loss: Any


@dataclass(frozen=True)
class Mean:
    """Engine to loop: the mean over the ring."""

    tensors: list[Any]
    loss: float


@dataclass(frozen=True)
class Again:
    """Engine to loop: the ring broke, nothing of this step counts."""


@dataclass(frozen=True)
class StepApplied:
    """Loop to engine: the step is part of this worker's state."""


@dataclass(frozen=True)
class Save:
    """Engine to loop: write the result."""


@dataclass(frozen=True)
class Saved:
    """Loop to engine."""

    path: str


@dataclass(frozen=True)
class Gone:
    """Loop to engine: user code raised, nothing more will come."""


@dataclass(frozen=True)
class Over:
    """Engine to loop: nothing more is to be trained here."""

    ending: Ending | None
    error: BaseException | None = None


class LoopGone(Exception):
    """Ends the engine's thread after the loop is gone."""


class StepAgain(BaseException):
    """Ends the body of a step whose ring broke. Not an Exception, so that no `except Exception` stops it."""


class Handover:
    """Two threads, one of which runs while the other waits."""

    def __init__(self) -> None:
        self.to_loop: SimpleQueue[Offer | Mean | Again | Save | Over] = SimpleQueue()
        self._to_engine: SimpleQueue[Brought | StepApplied | Saved | Gone] = SimpleQueue()

    def say(self, word: Brought | StepApplied | Saved | Gone) -> None:
        self._to_engine.put(word)

    def hear(self) -> Brought | StepApplied | Saved:
        word = self._to_engine.get()
        if isinstance(word, Gone):
            raise LoopGone
        return word
