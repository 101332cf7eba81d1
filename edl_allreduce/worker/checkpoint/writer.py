"""The background writer: training goes on while a copy of its state is written."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from edl_allreduce import clock
from edl_allreduce.core import protocol
from edl_allreduce.errors import StorageError
from edl_allreduce.storage.url import Place
from edl_allreduce.worker import disk
from edl_allreduce.worker.checkpoint import format as on_disk
from edl_allreduce.worker.checkpoint.fit import HoldsState, check_fit, check_identity
from edl_allreduce.worker.checkpoint.format import Array, JobIdentity, Loaded, Snapshot, Variable, number_of
from edl_allreduce.worker.checkpoint.shelf import newest, shelf
from edl_allreduce.worker.loop.journal import Journal

log = logging.getLogger(__name__)

WRITER_NICENESS = 19
"""The lowest priority: training takes what it needs first."""


class Checkpoints:
    """The checkpoints of one job, as one worker sees them.

    `save` copies the state and returns; a thread writes it. The memory of a copy is used again: to get new
    memory takes longer than to copy. When the disk cannot keep up, the newest snapshot waits and the one it
    replaces is dropped.
    """

    def __init__(
        self,
        directory: str,
        trainer: HoldsState,
        identity: JobIdentity,
        *,
        every: int,
        keep: int,
        send: Callable[[protocol.Checkpointed], None],
    ) -> None:
        self._shelf = shelf(directory)
        self.directory = self._shelf.where
        self._trainer = trainer
        self._identity = identity
        self._every = every
        # The newest of a job that compares bits may be withdrawn: then there must be one before it.
        self._keep = max(keep, 2) if keep and identity.bits else keep
        self._send = send
        self._changed = threading.Condition()
        self._next: Snapshot | None = None
        self._spare: list[list[Array]] = []
        self._busy = False
        self._thread: threading.Thread | None = None
        self._saved = -1
        self._seen: list[Place] | None = None
        self._loaded: Loaded | None = None
        model, optimizer = trainer.names()
        self._infinite = set(on_disk.not_finite([*model, *optimizer], trainer.state()))
        """On purpose, such as a mask: it was so from the beginning."""
        self.passed_over = ""
        """What the last search found broken, and what that means for a job that begins here."""

    def due(self, step: int) -> bool:
        return self._every > 0 and step % self._every == 0

    def newest(self) -> Loaded | None:
        """Where the job goes on if nobody holds its state. Read once, as long as no other one appears."""
        there = list(self._shelf.versions())
        if there != self._seen:
            self._loaded, broken = newest(self._shelf)
            self._seen = there
            self.passed_over = _passed_over(broken, there, self._loaded)
            if self.passed_over:
                log.warning("%s", self.passed_over)
        if self._loaded is not None:
            check_identity(self._loaded, self._identity)
            check_fit(self._loaded, self._trainer)
        return self._loaded

    def forget(self) -> None:
        """The state is in the trainer now."""
        self._loaded = self._seen = None

    def save(self, step: int, position: int, journal: Journal) -> None:
        """Copy the state; it is written while training goes on."""
        if step == self._saved:
            return
        self._saved = step
        began = clock.now()
        with self._changed:
            memory = self._spare.pop() if self._spare else []
        snapshot = _snapshot(self._trainer, step, position, journal, memory)
        with self._changed:
            if self._next is not None:
                self._spare.append(self._next.arrays)
                log.warning(
                    "the disk is slower than --checkpoint_steps=%d: the checkpoint of step %d is left out",
                    self._every, self._next.step,
                )  # fmt: skip
            self._next = snapshot
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        log.info("step %d: a checkpoint held training for %.1f ms", step, 1000 * (clock.now() - began))

    def flush(self) -> None:
        """Wait until everything is on disk."""
        with self._changed:
            self._changed.wait_for(lambda: self._next is None and not self._busy)

    def withdraw(self, step: int) -> None:
        """The state of this step was wrong; nobody must go on from it."""
        if step == self._saved:
            self.flush()
            self._shelf.withdraw(step)
            self._saved = -1

    def _run(self) -> None:
        with suppress(OSError):
            # Where all cores train, writing takes what they leave. On Linux a thread has its own priority.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), WRITER_NICENESS)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._next is not None)
                snapshot, self._next, self._busy = self._next, None, True
            assert snapshot is not None
            try:
                self._send(self._write(snapshot))
            finally:
                with self._changed:
                    self._spare.append(snapshot.arrays)
                    self._busy = False
                    self._changed.notify_all()

    def _write(self, snapshot: Snapshot) -> protocol.Checkpointed:
        step, where, began = snapshot.step, str(self.directory), clock.now()
        try:
            names = [variable.path for variable in (*snapshot.model, *snapshot.optimizer)]
            not_finite = on_disk.not_finite(names, snapshot.arrays)
            spoiled = [name for name in not_finite if name not in self._infinite]
            if spoiled:
                error = f"{spoiled[0]} holds NaN or an infinity, from which nobody could go on"
                log.error("no checkpoint of step %d: %s", step, error)
                return protocol.Checkpointed(step, where, error)
            self._shelf.tidy()  # there may be no room otherwise
            if self._identity.bits:
                snapshot = replace(snapshot, fingerprint=on_disk.fingerprint_of(snapshot.arrays))
            path = self._shelf.write(snapshot, self._identity)
            self._shelf.prune(self._keep, step)
            self._shelf.tidy()
        except Exception as error:
            unknown = not isinstance(error, OSError | StorageError)
            text = disk.words(error) if not unknown else f"{type(error).__name__}: {error}"
            log.error("the checkpoint of step %d could not be written: %s", step, text, exc_info=unknown)
            return protocol.Checkpointed(step, where, text)
        log.info("checkpoint of step %d is in %s", step, path)
        seconds = clock.now() - began
        return protocol.Checkpointed(step, str(path), seconds=seconds, fingerprint=snapshot.fingerprint)


def _passed_over(broken: Sequence[str], there: Sequence[Place], loaded: Loaded | None) -> str:
    if not broken:
        return ""
    others = f" (and {len(broken) - 1} before it)" if len(broken) > 1 else ""
    found = broken[0] + others
    if loaded is None:
        return f"{found}; no whole checkpoint is left: the job begins at step 0"
    again = number_of(there[0]) - number_of(loaded.path)
    return f"{found}; the job goes on from {loaded.path.name}, {again} steps are made again"


def _snapshot(
    trainer: HoldsState, step: int, position: int, journal: Journal, memory: list[Array]
) -> Snapshot:
    """A copy of the state, in this memory if it fits."""
    state = trainer.state()
    fits = [(a.shape, a.dtype) for a in memory] == [(a.shape, a.dtype) for a in state]
    arrays = memory if fits else [np.empty_like(array) for array in state]
    for array, value in zip(arrays, state, strict=True):
        np.copyto(array, value)
    names = trainer.names()
    described = [
        Variable(name, array.dtype.name, list(array.shape))
        for name, array in zip([*names[0], *names[1]], arrays, strict=True)
    ]
    count = len(names[0])
    return Snapshot(step, position, journal, described[:count], described[count:], arrays)
