"""Callbacks of a model file, where they make sense in an elastic loop.

They run on every rank, between the same steps and with the same numbers, so that all ranks come to the same
conclusion; what one of ours remembers travels in the journal to newcomers and into checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import msgspec

from edl_allreduce.errors import ModelError
from edl_allreduce.worker.loop.journal import Journal

__all__ = ["LearningRateScheduler", "MaxStepsStopping", "SavedModelExporter"]


class LearningRateScheduler(keras.callbacks.Callback):  # type: ignore[misc]  # keras is untyped
    """Sets the learning rate before each step: `schedule(batch)` gets the number of steps made so far."""

    def __init__(self, schedule: Callable[[int], float]) -> None:
        super().__init__()
        self.schedule = schedule

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        self.model.optimizer.learning_rate = self.schedule(batch)


class MaxStepsStopping(keras.callbacks.Callback):  # type: ignore[misc]  # keras is untyped
    """Ends training after exactly so many steps, as --max_step does."""

    def __init__(self, max_steps: int) -> None:
        super().__init__()
        if max_steps < 1:
            raise ModelError(f"MaxStepsStopping needs at least one step, got {max_steps}")
        self.max_steps = max_steps


class SavedModelExporter(keras.callbacks.Callback):  # type: ignore[misc]  # keras is untyped
    """Accepted for old model files: the model is always written to --output."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__()


UNFIT = {
    "BackupAndRestore": "--checkpoint_steps",
    "ModelCheckpoint": "--checkpoint_steps and --keep_checkpoint_max",
    "TensorBoard": "--tensorboard_log_dir",
    "ReduceLROnPlateau": "LearningRateScheduler",
    "CSVLogger": "--tensorboard_log_dir",
    "ProgbarLogger": "`elasticdl top`",
    "SwapEMAWeights": "an optimizer with use_ema=True",
}
"""Callbacks of Keras that keep state of their own or write files, and what to use instead."""

NEVER_CALLED = ("on_test_batch_begin", "on_test_batch_end")
"""The batches of an evaluation are spread over the ranks: there is no first and no last one."""


def overrides(callback: Any, hook: str) -> bool:
    base = keras.callbacks.Callback
    return hook in vars(callback) or getattr(type(callback), hook) is not getattr(base, hook)


def complaint(callback: Any, unfit: Mapping[str, str], where: str) -> str:
    """Why it cannot work, and what can; empty where it does."""
    name = type(callback).__name__
    if name in unfit and type(callback).__module__.startswith("keras"):
        return (
            f"the callback {name} cannot work {where}, where workers come and go; use {unfit[name]} instead"
        )
    for hook in NEVER_CALLED:
        if overrides(callback, hook):
            return (
                f"the callback {name} has {hook}(), which would never be called: an evaluation is spread "
                "over all workers. Use on_test_begin or on_test_end"
            )
    return ""


class Callbacks:
    """The callbacks of one job on one rank."""

    def __init__(self, callbacks: Sequence[Any], path: str = "") -> None:
        for callback in callbacks:
            if not isinstance(callback, keras.callbacks.Callback):
                name = type(callback).__name__
                raise ModelError(f"{path}: callbacks() must return Keras callbacks, got a {name}")
            if why := complaint(callback, UNFIT, "here"):
                raise ModelError(f"{path}: {why}")
        self._stoppers = [c for c in callbacks if isinstance(c, keras.callbacks.EarlyStopping)]
        self._plain = [c for c in callbacks if c not in self._stoppers]
        restoring = [place for place, s in enumerate(self._stoppers) if s.restore_best_weights]
        if len(restoring) > 1:
            raise ModelError(f"{path}: only one EarlyStopping can have restore_best_weights=True")
        self._restoring = str(restoring[0]) if restoring else ""
        self.on_best: Callable[[], None] = lambda: None
        """Called after an evaluation whose model is the best so far, where that one is wanted back."""
        self._model: Any = None
        self._epoch: int | None = None
        """The epoch that was begun here, or in which this worker came."""

    @property
    def restores_best(self) -> bool:
        return bool(self._restoring)

    @property
    def max_step(self) -> int:
        """The least limit of a MaxStepsStopping; 0 for none."""
        return min((c.max_steps for c in self._plain if isinstance(c, MaxStepsStopping)), default=0)

    def attach(self, model: Any, optimizer: Any, params: dict[str, Any]) -> None:
        """Before the first step, with everything built."""
        self._model = model
        if not self._plain:
            return
        model.optimizer = optimizer  # callbacks look for it there
        model.stop_training = False
        for callback in self._plain:
            callback.set_model(model)
            callback.set_params(params)
            callback.on_train_begin()

    def before_step(self, step: int, epoch: int, *, first: bool, journal: Journal) -> None:
        """`first`: of its epoch. A step that is repeated after a re-form does not begin its epoch again."""
        if epoch != self._epoch:
            self._end_epoch(step, journal)
            self._epoch = epoch
            if first:
                for callback in self._plain:
                    callback.on_epoch_begin(epoch)
        for callback in self._plain:
            callback.on_train_batch_begin(step)

    def after_step(self, step: int, loss: float) -> None:
        for callback in self._plain:
            callback.on_train_batch_end(step, {"loss": loss})

    def _end_epoch(self, step: int, journal: Journal) -> None:
        """After the last step of an epoch and what was evaluated then."""
        if self._epoch is None:
            return
        metrics = journal.metrics if journal.evaluated == step else {}
        logs = {"loss": journal.mean_loss} | {f"val_{name}": value for name, value in metrics.items()}
        for callback in self._plain:
            callback.on_epoch_end(self._epoch, dict(logs))

    @property
    def wants_stop(self) -> bool:
        """Whether a callback set `model.stop_training`."""
        return bool(self._plain) and bool(getattr(self._model, "stop_training", False))

    def after_evaluation(self, journal: Journal) -> Journal:
        """Early stopping, from the metrics and what was remembered; called once per evaluation."""
        nan = float("nan")
        logs = {
            name: nan if value is None else value
            for metric, value in journal.metrics.items()
            for name in (metric, f"val_{metric}")
        }
        for callback in self._plain:
            callback.on_test_end(dict(journal.metrics))
        for place, stopper in enumerate(self._stoppers):
            journal = _early_stopping(stopper, str(place), journal, logs)
        if self._restoring and journal.callbacks[self._restoring].get("best_at") == journal.evaluated:
            self.on_best()
        return journal

    def before_evaluation(self) -> None:
        for callback in self._plain:
            callback.on_test_begin()

    def end(self, step: int, journal: Journal, *, epoch_is_over: bool) -> None:
        if epoch_is_over:
            self._end_epoch(step, journal)
        for callback in self._plain:
            callback.on_train_end()


def _early_stopping(stopper: Any, place: str, journal: Journal, logs: dict[str, float]) -> Journal:
    if stopper.monitor not in logs:
        raise ModelError(
            f"EarlyStopping(monitor={stopper.monitor!r}): the evaluation gives {', '.join(journal.metrics)}; "
            "name one of them, with or without val_ in front"
        )
    value = logs[stopper.monitor]
    sign = _direction(stopper)
    memory = journal.callbacks.get(place, {})
    count, best, waited = memory.get("count", 0.0) + 1, memory.get("best"), memory.get("waited", 0.0)
    best_at = memory.get("best_at", -1.0)
    if count <= stopper.start_from_epoch:
        waited = 0.0
    elif math.isfinite(value) and (best is None or sign * (value - best) > abs(stopper.min_delta)):
        best, best_at, waited = value, float(journal.evaluated), 0.0
        if stopper.baseline is not None and sign * (value - stopper.baseline) <= abs(stopper.min_delta):
            waited = memory.get("waited", 0.0) + 1
    else:
        waited += 1
    halted = journal.halted
    if waited >= max(1, stopper.patience) and not halted:
        halted = (
            f"{stopper.monitor} has not improved in {waited:.0f} evaluations (best {best}, now {value}): "
            f"stopped early after step {journal.evaluated}"
        )
    kept = {"count": count, "waited": waited}
    if best is not None:
        kept |= {"best": best, "best_at": best_at}
    return msgspec.structs.replace(journal, callbacks={**journal.callbacks, place: kept}, halted=halted)


def _direction(stopper: Any) -> int:
    """1 when larger is better."""
    if stopper.mode in ("min", "max"):
        return 1 if stopper.mode == "max" else -1
    larger = ("acc", "auc", "precision", "recall", "f1", "r2", "iou")
    return 1 if any(word in stopper.monitor.lower() for word in larger) else -1
