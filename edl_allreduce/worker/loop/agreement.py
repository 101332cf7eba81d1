"""From which state a ring goes on: the furthest that somebody has."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from edl_allreduce import faults
from edl_allreduce.core import protocol
from edl_allreduce.core.protocol import NoteKind, Plan
from edl_allreduce.core.standing import Standing, origin
from edl_allreduce.storage.url import Place
from edl_allreduce.worker.checkpoint.writer import Checkpoints
from edl_allreduce.worker.loop import journal as journals
from edl_allreduce.worker.loop.diary import Diary
from edl_allreduce.worker.loop.orders import Orders
from edl_allreduce.worker.loop.same_weights import SameWeights
from edl_allreduce.worker.loop.state import TrainingState
from edl_allreduce.worker.loop.steps import Trains
from edl_allreduce.worker.ring.base import Ring

log = logging.getLogger(__name__)


@dataclass
class Agreement:
    """One worker's part in it."""

    state: TrainingState
    orders: Orders
    ring: Ring
    trainer: Trains
    diary: Diary
    checkpoints: Checkpoints | None
    weights: SameWeights | None = None
    """Where all ranks must hold the same bits."""
    _begun_from: Place | None = None

    def begin_from_checkpoint(self) -> None:
        """Take the newest checkpoint, as long as no state of a living worker was taken."""
        start = self.checkpoints.newest() if self.checkpoints is not None else None
        if start is None and self._begun_from is not None and self.weights is not None:
            raise FileNotFoundError(
                f"{self._begun_from}, from which this worker would begin, was withdrawn or deleted; "
                "another one begins without it"
            )
        if start is None or start.path == self._begun_from:
            return
        self.trainer.restore(start.arrays)
        contents, state = start.contents, self.state
        state.step, state.position, state.journal = contents.step, contents.position, contents.journal
        self._begun_from = start.path

    def agree(self, plan: Plan) -> int:
        """Everybody goes on from the furthest state, or from one that can be compared; it is sent only if
        somebody does not have it. Returns how many of its own steps this worker gave up for that."""
        table = self._gather()
        begins = not any(standing.is_agreed for standing in table)
        if begins:  # only then: a newcomer to a living ring must not keep it waiting for a disk
            self.begin_from_checkpoint()
            table = self._gather()
        root, alike, gives_way = origin(table, comparable=self.weights is not None)
        furthest, before = table[root]._replace(is_agreed=1), self.state.step
        if self.weights is not None:
            self.weights.compare_owners(plan, alike, furthest.step)
            if gives_way is not None:
                trusted = len(alike) > 1
                self.weights.give_way(gives_way, table[gives_way], furthest.step, trusted=trusted)
        behind = [rank for rank, standing in enumerate(table) if standing != furthest and rank != root]
        if behind:
            leads = int(self.ring.rank == root)
            faults.reach("sync", rank=self.ring.rank, generation=plan.generation, root=leads)
            self._share(root, furthest, behind)
        if begins:
            self._begin_run(root)
        self.state.is_agreed = True
        if self.checkpoints is not None:
            self.checkpoints.forget()
        return before - self.state.step if self.ring.rank == gives_way else 0

    def _gather(self) -> list[Standing]:
        state = self.state
        size = len(journals.encode(state.journal))
        own = Standing(state.is_agreed, state.step, state.position, state.journal.evaluated, size, state.run)
        return [Standing(*row) for row in self.ring.gather(own)]

    def _share(self, root: int, furthest: Standing, behind: list[int]) -> None:
        state, before, length = self.state, self.state.step, furthest.journal_bytes
        memory = journals.encode(state.journal)
        sent = np.frombuffer(memory.ljust(length)[:length], np.uint8).copy()
        *arrays, sent = self.ring.share_state([*self.trainer.state(), sent], root, behind)
        if self.ring.rank in behind:
            self.trainer.restore(arrays)
            state.step, state.position, state.run = furthest.step, furthest.position, furthest.run
            state.journal = journals.decode(sent.tobytes())
            if self.weights is not None:
                self.weights.spoiled = False
            log.info("took the state of rank %d: %d steps (had %d)", root, state.step, before)

    def _begin_run(self, root: int) -> None:
        """Nobody held the job's state: it begins, or comes back from a checkpoint."""
        state, leads = self.state, self.ring.rank == root
        number = self.diary.open_run(state.step, state.position) if leads else 0
        state.run = self.ring.gather([number])[root][0]
        if leads and self.checkpoints is not None and self.checkpoints.passed_over:
            self.orders.send(protocol.Note(NoteKind.WARNING, self.checkpoints.passed_over, once=True))
        if leads and self._begun_from is not None:
            where = f"from {self._begun_from}, after {state.step} steps and {state.position} records"
            log.info("resumed %s", where)
            self.orders.send(protocol.Note(NoteKind.RESUME, f"the job goes on {where}"))
