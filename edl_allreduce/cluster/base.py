"""The seam between a master and whatever runs its workers.

Local processes, workers that people start and pods are three implementations of `Cluster`; one more (Slurm)
would be one more file, and one line in `choose`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from edl_allreduce.core.job.inbox import Ended, Note
from edl_allreduce.core.status import WorkerFacts


@dataclass(frozen=True)
class DryRun:
    """What would be done, before anything is done. `--yaml` prints it; a dry run needs nothing else."""

    commands: tuple[tuple[str, ...], ...] = ()
    """Arguments of the processes that would be started on this machine."""
    objects: tuple[Mapping[str, Any], ...] = ()
    """Manifests that would be sent to an API server."""


@dataclass(frozen=True)
class Found:
    """What an earlier master of this job left."""

    living: tuple[int, ...] = ()
    running: tuple[int, ...] = ()
    """Those of them that may hold the model."""
    next_id: int = 0
    """The least id that was never used."""


@dataclass(frozen=True)
class Site:
    """What a cluster must know about a master outside of it, whose workers it starts."""

    argv_of: Callable[[int], list[str]]
    """Arguments of Python for the worker with this id. They name the master's address, so not before it
    listens."""
    log_dir: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    """For workers, beside what is inherited: the job's token among it."""


News = Ended | Note
"""What happens by itself where workers run, as the job's machine takes it in."""


class Cluster(Protocol):
    """Starts and ends workers; ids come from the master and are never reused.

    One asyncio loop calls all of it, and no method blocks that loop.
    """

    head_start: float
    """Seconds for survivors to re-form before a replacement starts, where it would take their cores."""

    def plan(self, worker_id: int) -> DryRun:
        """What `launch` would do."""

    async def start(self) -> Found:
        """Find what is there and follow it from now on; call it once, before anything else."""

    async def launch(self, worker_id: int) -> None: ...

    async def terminate(self, worker_id: int) -> None:
        """Ask it to drain."""

    async def kill(self, worker_id: int) -> None:
        """End it now."""

    async def next_news(self) -> News:
        """Wait for the next thing that happens by itself."""

    def facts(self, worker_id: int) -> WorkerFacts: ...

    async def last_words(self, worker_id: int) -> str:
        """The end of its log; empty when it cannot be had."""

    async def close(self) -> None:
        """End everything that is left."""
