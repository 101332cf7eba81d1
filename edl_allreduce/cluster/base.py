"""The seam between the master and whatever runs its workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from edl_allreduce.core.causes import Cause


@dataclass(frozen=True)
class Ended:
    """A worker's process or pod is over."""

    worker_id: int
    cause: Cause
    text: str
    """For people: exit code, signal, the pod's own words."""


class Cluster(Protocol):
    """Starts and ends workers; ids come from the master and are never reused."""

    head_start: float
    """Seconds for survivors to re-form before a replacement starts, where it would take their cores."""

    async def launch(self, worker_id: int) -> None: ...

    async def terminate(self, worker_id: int) -> None:
        """Ask it to drain."""

    async def kill(self, worker_id: int) -> None:
        """End it now."""

    async def next_end(self) -> Ended:
        """Wait for the next worker that ends."""

    def identity(self, worker_id: int) -> int:
        """The pid, where there is one; 0 otherwise."""

    def condition(self, worker_id: int) -> str:
        """Why a worker does not run yet, in the cluster's own words; empty when there is nothing to say."""

    def last_words(self, worker_id: int) -> str:
        """The end of its log."""

    async def close(self) -> None:
        """End everything that is left."""
