"""What the loop must know of the job."""

from __future__ import annotations

from dataclasses import dataclass

from edl_allreduce.core.progress import Length
from edl_allreduce.core.schedule import Schedule
from edl_allreduce.spec import OnNan


@dataclass(frozen=True)
class BatchSize:
    """Records of one step."""

    global_batch: int
    """Over all workers that the job wants."""
    per_worker: int = 0
    """Not 0: each worker takes so many, so a step of a larger ring takes more."""

    def of(self, ring: int) -> int:
        """In a ring of so many."""
        return self.per_worker * ring if self.per_worker else self.global_batch


@dataclass(frozen=True)
class LoopSettings:
    """The parts of a job's flags that the loop itself reads."""

    batch: BatchSize
    log_loss_steps: int = 0
    """0: never."""
    audit_dir: str = ""
    shares_bad: bool = False
    """No master counts bad records, so ranks tell each other."""
    job_name: str = ""
    lost_records: int = 0
    """Of the data, because parts of its files cannot be read."""
    evaluation_steps: int = 0
    """0: only at the end, where there is validation data."""
    on_nan: OnNan = OnNan.STOP
    virtual_ranks: int = 0
    """Into how many parts work is cut, where all must come to the same bits; 0: one for each rank."""

    def length(self, schedule: Schedule) -> Length:
        """What the master must know to say how far the job is."""
        records, epochs, limit = schedule.order.records, schedule.epochs, schedule.max_step
        return Length(records, epochs, self.batch.of(1), limit, per_worker=self.batch.per_worker > 0)
