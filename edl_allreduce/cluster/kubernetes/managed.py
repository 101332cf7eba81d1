"""A job that is a TrainingJob, as the commands see it: its master's pod may be gone, and the job goes on."""

from __future__ import annotations

from dataclasses import dataclass, field

from edl_allreduce import clock
from edl_allreduce.cluster.kubernetes import training_jobs
from edl_allreduce.cluster.kubernetes.names import Object
from edl_allreduce.cluster.kubernetes.remote import FRESH_SECONDS, NOT_FOUND, ClusterJob
from edl_allreduce.cluster.kubernetes.training_jobs import Account, account
from edl_allreduce.core.status import JobStatus
from edl_allreduce.errors import ApiRefused
from edl_allreduce.spec.resource import path


@dataclass
class ManagedJob(ClusterJob):
    """One TrainingJob, whatever became of its pods."""

    resource: Object | None = field(default=None, repr=False)
    _read: float = field(default_factory=clock.now, repr=False)

    def told(self) -> Account | None:
        """What its status says, not much older than now; None when it was deleted."""
        if clock.now() - self._read > FRESH_SECONDS:
            try:
                self.resource = self.api.get(path(self.namespace, self.name))
            except ApiRefused as error:
                if error.status != NOT_FOUND:
                    raise
                self.resource = None
            self._read = clock.now()
        return None if self.resource is None else account(self.resource)

    @property
    def started(self) -> float:
        """When it was submitted."""
        return account(self.resource).created if self.resource is not None else 0.0

    def phase(self) -> str:
        """Of its master's pod; while there is none, of the TrainingJob, which then cannot be running."""
        pod = super().phase()
        if pod != "Gone":
            return pod
        told = self.told()
        if told is None:
            return "Gone"
        return told.phase if told.over else "Pending"

    def over(self) -> bool:
        told = self.told()
        return told is None or told.over

    def absence(self) -> str:
        if self.pod() is not None:
            return super().absence()
        told = self.told()
        if told is None:
            return "its TrainingJob was deleted"
        return f"its TrainingJob is {told.phase}: {told.reason}"

    def result(self) -> JobStatus | None:
        """What the master said last; when its pod is gone, too, what is left in the TrainingJob."""
        said = super().result()
        told = self.told()
        if said is not None or told is None or not told.over:
            return said
        return JobStatus(
            job_name=self.name,
            phase=told.phase,
            wanted=told.target,
            minimum=told.minimum,
            generation=0,
            step=told.step,
            total_steps=told.total_steps,
            loss=float("nan"),
            records_per_second=0.0,
            steps_per_second=0.0,
            waiting_for="",
            elapsed=0.0,
            workers=[],
            events=[],
            reason=told.reason,
        )

    def resize(self, workers: int | None) -> bool:
        training_jobs.scale(self.api, self.namespace, self.name, workers)
        return True
