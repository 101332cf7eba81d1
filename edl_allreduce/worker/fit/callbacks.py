"""Keras callbacks in `elastic.fit`: on every worker, in the order of `model.fit`, with the same numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import msgspec

from edl_allreduce import files
from edl_allreduce.errors import UsageError
from edl_allreduce.worker.fit.memory import Memory
from edl_allreduce.worker.fit.trainer import plain
from edl_allreduce.worker.keras.callbacks import complaint, overrides
from edl_allreduce.worker.keras.private import choose_direction
from edl_allreduce.worker.loop.journal import Journal

UNFIT = {
    "BackupAndRestore": "--checkpoint_dir and --checkpoint_steps of the job",
    "CSVLogger": "the History that fit returns",
    "OrbaxCheckpoint": "--checkpoint_dir and --checkpoint_steps of the job",
    "ProgbarLogger": "`elasticdl top`, or the lines that fit prints",
    "RemoteMonitor": "a callback of your own that sends where elastic.rank() == 0",
    "SwapEMAWeights": "an optimizer with use_ema=True",
    "TensorBoard": "--tensorboard_log_dir of the job",
}
"""Callbacks of Keras that write what only one process may write, and what to use instead."""
WEIGHTS = ".weights.h5"
"""How names of files with weights must end for Keras."""
BATCH_END = ("on_train_batch_end", "on_batch_end")
ROW = "epoch/"
"""Before the number of an epoch, in the journal."""


def check(callbacks: Sequence[Any]) -> None:
    """Raises UsageError for the first one that cannot work."""
    for callback in callbacks:
        if not isinstance(callback, keras.callbacks.Callback):
            raise UsageError(f"callbacks: expected Keras callbacks, got a {type(callback).__name__}.")
        if why := complaint(callback, UNFIT, "in elastic.fit"):
            raise UsageError(f"{why}.")


class _Saving:
    """The model as a ModelCheckpoint sees it: one worker writes, and files appear when they are whole."""

    def __init__(self, model: Any, leads: Callable[[], bool]) -> None:
        vars(self).update(_model=model, _leads=leads)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._model, name, value)

    def save(self, filepath: str, **more: Any) -> None:
        if self._leads():
            with files.drafted(Path(filepath)) as draft:
                self._model.save(draft, **more)

    def save_weights(self, filepath: str, **more: Any) -> None:
        if not self._leads():
            return
        with files.drafted(Path(filepath)) as draft:
            named = draft.with_suffix(WEIGHTS)
            try:
                self._model.save_weights(named, **more)
                named.replace(draft)
            finally:
                named.unlink(missing_ok=True)


class FitCallbacks:
    """The callbacks of one job on one worker, and the history of the training."""

    def __init__(
        self,
        callbacks: Sequence[Any],
        model: Any,
        memory: Memory,
        *,
        records: int,
        steps: int,
        epochs: int,
        verbose: bool,
        leads: Callable[[], bool],
        anybody: Callable[[bool], bool],
    ) -> None:
        """`anybody`: whether this is true on any worker; all of them ask together."""
        self._callbacks = callbacks
        self._model = model
        self._memory = memory
        self._records, self._steps, self._epochs = records, steps, epochs
        self._verbose = verbose
        self._leads = leads
        self._anybody = anybody
        self._tells_batches = any(overrides(c, hook) for c in callbacks for hook in BATCH_END)
        self.journal: Callable[[], Journal] = Journal
        """How the engine's journal is at the moment."""
        self.validates: Callable[[], bool] = lambda: False
        """Whether this epoch ends with a validation."""

    def begin(self) -> None:
        """Before the first step, with everything built."""
        self._model.stop_training = False
        self._memory.model_is_built(self._model)
        for callback in self._callbacks:
            saves = isinstance(callback, keras.callbacks.ModelCheckpoint)
            callback.set_model(_Saving(self._model, self._leads) if saves else self._model)
            callback.set_params({"verbose": 0, "epochs": self._epochs, "steps": self._steps})
            callback.on_train_begin()
            choose_direction(callback)

    def train_end(self) -> None:
        for callback in self._callbacks:
            callback.on_train_end()

    # ------------------------------------------------------------------------------ what the loop calls

    @property
    def wants_stop(self) -> bool:
        """Whether a callback ended the training in the middle of an epoch."""
        return bool(self._model.stop_training)

    def before_step(self, step: int, epoch: int, *, first: bool, journal: Journal) -> None:
        if first and self._memory.epoch_begun < epoch:
            self._memory.epoch_begun = epoch
            self._model.reset_metrics()
            for callback in self._callbacks:
                callback.on_epoch_begin(epoch)
        if self._memory.step_begun < step:
            self._memory.step_begun = step
            for callback in self._callbacks:
                callback.on_train_batch_begin(step - epoch * self._steps)

    def after_step(self, step: int, loss: float) -> None:
        if not self._tells_batches:
            return
        logs = self.training_logs()
        for callback in self._callbacks:
            callback.on_train_batch_end(step % self._steps, dict(logs))

    def training_logs(self) -> dict[str, float]:
        """Loss and metrics of the epoch so far."""
        return plain(self._model.get_metrics_result()) | {"loss": self.journal().mean_loss}

    def before_evaluation(self) -> None:
        if self.validates():
            for callback in self._callbacks:
                callback.on_test_begin()

    def after_evaluation(self, journal: Journal) -> Journal:
        """The end of an epoch: what was found is remembered, and a callback may end the training."""
        if journal.epoch_records < self._records:
            return journal  # --max_step ended the training in the middle of one
        found = {name: math.nan if value is None else value for name, value in journal.metrics.items()}
        memory = self._memory
        if memory.epoch_ended < journal.epoch:
            told = self._end_epoch(journal.epoch, found)
            memory.epoch_ended, memory.halts = journal.epoch, bool(self._model.stop_training)
            memory.told = {n: v for n, v in _finite(told).items() if found.get(n) != v}
        halted = journal.halted
        # All or nobody: a callback may look at a clock, or at a file that only one worker has.
        if self._anybody(memory.halts) and not halted:
            halted = f"a callback ended the training after epoch {journal.epoch + 1} of {self._epochs}"
        kept = {**journal.callbacks, f"{ROW}{journal.epoch}": _finite(found) | memory.told}
        return msgspec.structs.replace(journal, callbacks=kept, halted=halted)

    def _end_epoch(self, epoch: int, metrics: dict[str, float]) -> dict[str, float]:
        """Tell the callbacks; what the epoch gave, with what they added to it."""
        logs = dict(metrics)
        if self.validates():
            found = {n.removeprefix("val_"): v for n, v in logs.items() if n.startswith("val_")}
            for callback in self._callbacks:
                callback.on_test_end(dict(found))
        for callback in self._callbacks:
            callback.on_epoch_end(epoch, logs)  # the same dict for all, as in Keras: some add to it
        if self._verbose and self._leads():
            shown = " - ".join(f"{name}: {value:.4g}" for name, value in logs.items())
            print(f"Epoch {epoch + 1}/{self._epochs} - {shown}", flush=True)
        return logs

    def end(self, step: int, journal: Journal, *, epoch_is_over: bool) -> None:
        """on_train_end comes when the model is what it will be (`CompiledTrainer.conclude`)."""


def _finite(logs: Mapping[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in logs.items() if math.isfinite(value)}


def history_of(journal: Journal, model: Any, epochs: int, steps: int) -> Any:
    """What `model.fit` returns: for each epoch its loss and metrics."""
    rows = {int(k.removeprefix(ROW)): row for k, row in journal.callbacks.items() if k.startswith(ROW)}
    history = keras.callbacks.History()
    history.set_model(model)
    history.set_params({"verbose": 0, "epochs": epochs, "steps": steps})
    history.epoch = sorted(rows)
    names = dict.fromkeys(name for epoch in history.epoch for name in rows[epoch])
    history.history = {
        name: [rows[e].get(name, math.nan) for e in history.epoch if _has_row(rows[e], name)]
        for name in names
    }
    model.history = history
    return history


def _has_row(row: dict[str, float], name: str) -> bool:
    """With validation_freq some epochs have no validation; Keras leaves those out of the lists."""
    return name in row or not name.startswith("val_")
