"""Who looks on between steps: callbacks of a model file, and curves for people. Own loops have neither."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from edl_allreduce.worker.loop.journal import Journal


class ObservesSteps(Protocol):
    """Called on every rank, between the same steps and with the same numbers."""

    @property
    def wants_stop(self) -> bool: ...

    def before_step(self, step: int, epoch: int, *, first: bool, journal: Journal) -> None:
        """`first`: of its epoch."""

    def after_step(self, step: int, loss: float) -> None: ...

    def before_evaluation(self) -> None: ...

    def after_evaluation(self, journal: Journal) -> Journal:
        """What is to be remembered now; this may end the training."""

    def end(self, step: int, journal: Journal, *, epoch_is_over: bool) -> None: ...


class NoCallbacks:
    """Nobody looks on."""

    wants_stop = False

    def before_step(self, step: int, epoch: int, *, first: bool, journal: Journal) -> None: ...

    def after_step(self, step: int, loss: float) -> None: ...

    def before_evaluation(self) -> None: ...

    def after_evaluation(self, journal: Journal) -> Journal:
        return journal

    def end(self, step: int, journal: Journal, *, epoch_is_over: bool) -> None: ...


class DrawsCurves(Protocol):
    """Told on rank 0 only."""

    def step(self, step: int, *, loss: float, records_per_second: float, ring: int) -> None: ...

    def evaluation(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def pause(self, step: int, seconds: float, ring: int) -> None: ...

    def flush(self) -> None: ...


class NoCurves:
    """Nothing is drawn."""

    def step(self, step: int, *, loss: float, records_per_second: float, ring: int) -> None: ...

    def evaluation(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def pause(self, step: int, seconds: float, ring: int) -> None: ...

    def flush(self) -> None: ...
