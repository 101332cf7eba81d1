"""Where a training thread's orders come from and where its reports go: a master, or a fixed plan."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from edl_allreduce.core import protocol
from edl_allreduce.core.attendance.state import NextOrder
from edl_allreduce.core.health import Activity
from edl_allreduce.core.protocol import Plan, Seat
from edl_allreduce.worker.loop.ledger import Ledger

StartPoint = tuple[int, int]
"""Where a ring begins: the step, and the position in the data."""


class Ending(Enum):
    """How a worker's part in the job ended."""

    RELEASED = "the job is over"
    LEFT = "drained"
    EVICTED = "evicted"
    ABANDONED = "the master is gone"


@dataclass
class Progress:
    """What heartbeats tell. Written by the training thread only."""

    activity: Activity = Activity.PREPARING
    step: int = 0
    position: int = 0
    loss: float = float("nan")
    step_seconds: float = 0.0
    done: int = 0
    """Finished pieces of an evaluation."""
    compute_seconds: float = 0.0
    """Median of the recent steps: this worker's own part, before it meets the others."""
    best_compute_seconds: float = 0.0
    """The lowest such median in this ring."""
    ledger: Ledger = field(default_factory=Ledger)
    """Where the time went."""

    @contextmanager
    def user_code(self) -> Iterator[None]:
        """Between two collectives of a step: whoever is stuck in there is judged, and not those who wait."""
        self.activity = Activity.COMPUTING
        yield
        self.activity = Activity.REDUCING


class Orders(Protocol):
    """What the training thread hears and says."""

    seat: Seat
    progress: Progress

    @property
    def draining(self) -> bool:
        """Whether this worker was asked to leave."""

    @property
    def deserted(self) -> bool:
        """Whether no master can let this worker go, although it was asked to leave."""

    def next_order(self, generation: int) -> NextOrder:
        """Wait for what to do after the ring of `generation`."""

    def upcoming(self, generation: int) -> Plan | None:
        """The plan after this generation, if there is one with a seat for this worker."""

    def announce(self, plan: Plan, place: StartPoint) -> None:
        """Tell newcomers where the ring of `plan` will begin, so that they read their records before."""

    def wait_for_place(self, generation: int) -> StartPoint | None:
        """Where the ring will begin, when a member of the old one says so; None if it never comes about."""

    def wait_for_company(self, generation: int) -> bool:
        """Until the old ring's members come, after a long step maybe; False if they never do."""

    def entering(self, plan: Plan, place: StartPoint | None) -> bool:
        """Say that this worker goes into the ring of `plan`; False when that ring is doomed already."""

    def joined(self, generation: int, step: int, position: int) -> None:
        """Say that the ring stands and that all agree on the state."""

    def vote(self, generation: int) -> tuple[bool, bool]:
        """Whether this ring should end, and whether this worker was told to stop."""

    def doomed(self, generation: int) -> bool:
        """Whether the ring of this generation is to be left at once."""

    def declined(self, plan: Plan, step: int) -> None:
        """Say that this worker will not come to the ring of `plan`: it was called off before it entered."""

    def left(self, step: int, reason: str) -> None:
        """Say that this worker is out of its ring before its time and waits."""

    def switching(self, step: int) -> None:
        """The ring ended at a voted boundary."""

    def done(self, step: int, *, stopped: bool, failure: str, warning: str, fingerprint: str = "") -> None:
        """Say that the last step was trained, or that this worker stopped at a boundary."""

    def send(self, message: protocol.FromWorker) -> None: ...
