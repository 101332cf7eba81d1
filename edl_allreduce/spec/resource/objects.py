"""TrainingJob objects of the API server ⇄ jobs as flags describe them."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator
from typing import Any, Final

from edl_allreduce.core.trainingjob import moment
from edl_allreduce.errors import UsageError
from edl_allreduce.spec import validate
from edl_allreduce.spec.declare import Command, flag_of
from edl_allreduce.spec.flags import kind_of
from edl_allreduce.spec.job import JobSpec
from edl_allreduce.spec.resource.documents import in_our_spelling
from edl_allreduce.spec.resource.names import API_VERSION, KIND, QUEUE_LABEL, Object
from edl_allreduce.spec.resource.places import FIELDS, PLAIN, in_words_of_the_resource
from edl_allreduce.spec.resource.schema import spec_schema, unknown
from edl_allreduce.spec.resource.shapes import REPLICAS, read_shaped, write_shaped
from edl_allreduce.spec.resource.untyped import checked, look, put

_DEFAULTS: Final = JobSpec()


@dataclasses.dataclass(frozen=True)
class TrainingJob:
    """One object of the cluster. What flags can say too is in `spec`."""

    namespace: str
    name: str
    uid: str
    generation: int
    created: float
    """Seconds since 1970."""
    deletion: float | None
    """When it was asked to go; None while it was not."""
    spec: JobSpec
    """As `elasticdl train` would have read it from flags."""
    replicas: int | None = None
    """How many workers somebody asked for through the scale subresource; None: the autoscaler decides."""
    suspend: bool = False
    managed_by: str = ""
    """Another controller that looks after it; then ours does not."""
    warnings: tuple[str, ...] = ()
    """What its spec says without effect."""

    @property
    def min(self) -> int:
        return self.spec.min_workers

    @property
    def max(self) -> int:
        """No more than have something to do: workers.max of a job that has begun may be raised at any time,
        the parts of its steps are what they are."""
        most = self.spec.max_workers or self.spec.num_workers
        return min(most, self.spec.virtual_ranks or most)

    @property
    def queue(self) -> str:
        """Kueue's queue that admits its pods; empty when none does."""
        return self.spec.queue_name


def from_object(given: Object) -> TrainingJob:
    """Read a TrainingJob. Raises one `UsageError` with every problem, in the words of the resource."""
    metadata = checked(given.get("metadata") or {}, dict, ("metadata",))
    written = checked(given.get("spec") or {}, dict, ())
    spec, warnings = in_our_spelling(written)
    values, problems = _plain_values(spec)
    try:
        values |= read_shaped(spec)
    except UsageError as error:
        raise UsageError("\n".join([*problems, str(error)])) from error
    labels = checked(metadata.get("labels") or {}, dict, ("metadata", "labels"))
    values |= {
        "job_name": str(metadata.get("name", "")),
        "namespace": str(metadata.get("namespace") or _DEFAULTS.namespace),
        "queue_name": str(labels.get(QUEUE_LABEL, "")),
    }
    job = JobSpec(**values)
    problems += [in_words_of_the_resource(text) for text in _problems(job)]
    if problems:
        raise UsageError("\n".join(problems))
    replicas = look(spec, REPLICAS)
    return TrainingJob(
        namespace=job.namespace,
        name=job.job_name,
        uid=str(metadata.get("uid", "")),
        generation=checked(metadata.get("generation", 0), int, ("metadata", "generation")),
        created=moment(metadata.get("creationTimestamp")) or 0.0,
        deletion=moment(metadata.get("deletionTimestamp")),
        spec=job,
        replicas=None if replicas is None else checked(replicas, int, REPLICAS),
        suspend=checked(spec.get("suspend", False), bool, ("suspend",)),
        managed_by=checked(spec.get("managedBy", ""), str, ("managedBy",)),
        warnings=(
            *warnings,
            *_idle(job),
            *(f"spec.{path} is unknown and has no effect." for path in unknown(written, spec_schema())),
        ),
    )


def to_object(job: JobSpec) -> Object:
    """The TrainingJob that says the same as these flags; what is at its default is left out."""
    if job.cluster_spec:
        raise UsageError(
            "--cluster_spec is Python code that runs where a job is submitted, so it cannot be part of a "
            "TrainingJob: say the same with --cluster_spec_json, or submit with --no_controller."
        )
    spec: Object = {"image": job.image_name}
    for name, path in PLAIN.items():
        value = getattr(job, name)
        if value != getattr(_DEFAULTS, name):
            put(spec, path, value.value if isinstance(value, enum.Enum) else value)
    for path, value in write_shaped(job):
        put(spec, path, value)
    labels = {"labels": {QUEUE_LABEL: job.queue_name}} if job.queue_name else {}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": job.job_name, "namespace": job.namespace, **labels},
        "spec": spec,
    }


def _plain_values(spec: Object) -> tuple[dict[str, Any], list[str]]:
    values: dict[str, Any] = {}
    problems: list[str] = []
    for name, path in PLAIN.items():
        try:
            found = look(spec, path)
            if found is not None:
                values[name] = _value(name, found, path)
        except UsageError as error:
            problems.append(str(error))
    return values, list(dict.fromkeys(problems))


def _value(name: str, found: Any, path: tuple[str, ...]) -> Any:
    kind = kind_of(name)
    where = f"spec.{'.'.join(path)}"
    if issubclass(kind, enum.StrEnum):
        if found not in list(kind):
            raise UsageError(f"{where}: expected one of {', '.join(kind)}, got {str(found)[:80]!r}")
        return kind(found)
    value: Any = checked(found, kind, path)
    minimum = flag_of(FIELDS[name]).minimum
    if minimum is not None and value < minimum:
        raise UsageError(f"{where}: must be at least {minimum:g}, is {value:g}")
    return value


def _idle(job: JobSpec) -> Iterator[str]:
    if validate.too_few_parts(job, job.max_workers):
        yield (
            f"spec.workers.max is {job.max_workers}, and each step of this reproducible job is cut into "
            f"{job.virtual_ranks} parts (spec.training.virtualWorkers), which cannot change: it gets at most "
            f"{job.virtual_ranks} workers."
        )


def _problems(job: JobSpec) -> Iterator[str]:
    if not job.image_name:
        yield "spec.image is missing: in which image does the job run?"
    # A master does what its data says, and so does a TrainingJob.
    yield from validate.problems(Command.MASTER, job, unreadable=frozenset())
