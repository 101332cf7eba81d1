"""One TrainingJob with what belongs to it, as the pure core wants to see it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from edl_allreduce.cluster.kubernetes import names
from edl_allreduce.cluster.kubernetes.manifests import MasterContext, worker_pod
from edl_allreduce.cluster.kubernetes.names import Object, Replica
from edl_allreduce.controller.mirror import NAMESPACES, PODS, SERVICES, Mirror
from edl_allreduce.controller.objects import master_pod_of
from edl_allreduce.core.autoscale import Pod, Role, Template
from edl_allreduce.core.controller import reading, status, survey
from edl_allreduce.core.controller.facts import Advice, CleanUp, Known, Told, Wish
from edl_allreduce.core.controller.survey import Templates
from edl_allreduce.errors import UsageError
from edl_allreduce.spec.resource import TrainingJob, from_object

SWITCH = "elasticdl.org/autoscale"
"""Label or annotation of a TrainingJob, label of a namespace: "false" keeps our autoscaler's hands off."""
OURS = "elasticdl.org/controller"
"""What spec.managedBy says when it means this controller."""


@dataclass(frozen=True)
class Read:
    """A TrainingJob that was read once; only a new version of it is read again."""

    version: str
    job: TrainingJob | None
    problem: str = ""
    worker: Template | None = None
    master: Template | None = None


@dataclass
class Entry:
    """What is remembered of one job between two rounds."""

    found: Object
    """As the API server has it."""
    read: Read
    told: Told
    trouble: str = ""
    """What the API server did not let us do for it."""
    not_before: float = 0.0
    """After trouble nothing is tried before."""
    failures: int = 0
    shown: tuple[str, ...] = ()
    """What was last told as Events."""

    @property
    def uid(self) -> str:
        return str(self.found["metadata"]["uid"])

    @property
    def key(self) -> str:
        metadata = self.found["metadata"]
        return f"{metadata['namespace']}/{metadata['name']}"

    @property
    def managed_elsewhere(self) -> bool:
        managed_by = (self.found.get("spec") or {}).get("managedBy") or OURS
        return bool(managed_by != OURS)


class Book:
    """All jobs that there are."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.templates = Templates()
        self._pods: dict[str, tuple[object, Pod | None]] = {}

    def update(self, objects: Mapping[str, Object]) -> None:
        """After a look at the TrainingJobs: new ones come in, changed ones are read again."""
        self.entries = {key: self._entry(key, found) for key, found in objects.items()}

    def pods(self, found: Iterable[Object], roles: Mapping[str, tuple[str, Role]]) -> list[Pod]:
        """As the autoscaler sees them; only those that changed are read again."""
        seen: dict[str, tuple[object, Pod | None]] = {}
        for one in found:
            uid = one["metadata"]["uid"]
            key, role = roles.get(uid, ("", Role.SERVICE))
            said = (one["metadata"].get("resourceVersion"), key, role)
            before = self._pods.get(uid)
            if before is None or before[0] != said:
                before = (said, survey.pod(one, self.templates, key, role))
            seen[uid] = before
        self._pods = seen
        return [pod for _, pod in seen.values() if pod is not None]

    def _entry(self, key: str, found: Object) -> Entry:
        before = self.entries.get(key)
        metadata = found["metadata"]
        if before is None or before.uid != metadata["uid"]:
            return Entry(found, self._read(found), status.told_in(found.get("status") or {}))
        # Its status is ours; only another generation, label or annotation says something new.
        if self._said(found) != before.read.version:
            before.read = self._read(found)
        before.found = found
        return before

    def _said(self, found: Object) -> str:
        metadata = found["metadata"]
        said = (metadata.get("generation"), metadata.get("deletionTimestamp"))
        return str((*said, metadata.get("labels"), metadata.get("annotations")))

    def _read(self, found: Object) -> Read:
        version = self._said(found)
        try:
            job = from_object(found)
            owner = {**found, "apiVersion": found["apiVersion"], "kind": found["kind"]}
            master = master_pod_of(job.spec, owner, {})
            worker = worker_pod(job.spec, 0, 0, MasterContext("master"))
        except UsageError as error:
            return Read(version, None, str(error))
        except Exception as error:  # noqa: BLE001  one odd object must not stop the controller for all others
            return Read(version, None, f"it cannot be read: {type(error).__name__}: {error}")
        return Read(version, job, "", self.templates.of(worker["spec"]), self.templates.of(master["spec"]))


def pods_of(mirror: Mirror) -> dict[str, list[Object]]:
    """Pods by the TrainingJob that owns them, by uid."""
    found: dict[str, list[Object]] = {}
    for pod in mirror.of(PODS):
        for owner in pod["metadata"].get("ownerReferences") or ():
            found.setdefault(owner.get("uid", ""), []).append(pod)
    return found


def wish_of(job: TrainingJob, found: Object, mirror: Mirror) -> Wish:
    spec = job.spec
    return Wish(
        minimum=job.min,
        maximum=job.max,
        replicas=job.replicas,
        suspend=job.suspend,
        ttl=spec.ttl_seconds_after_finished,
        active_deadline=spec.active_deadline_seconds or None,
        clean_up=CleanUp(spec.clean_pod_policy.value),
        standby=spec.standby,
        keeps_state=bool(spec.checkpoint_dir),
        hands_off=_hands_off(job, found, mirror),
    )


def _hands_off(job: TrainingJob, found: Object, mirror: Mirror) -> str:
    if job.queue:
        return f"its size is a matter of Kueue's queue {job.queue}"
    metadata = found["metadata"]
    switches = {**(metadata.get("labels") or {}), **(metadata.get("annotations") or {})}
    if switches.get(SWITCH, "").lower() == "false":
        return f"{SWITCH}=false: the autoscaler leaves it alone"
    namespace = mirror.get(NAMESPACES, job.namespace) or {"metadata": {}}
    if (namespace["metadata"].get("labels") or {}).get(SWITCH, "").lower() == "false":
        return f"{SWITCH}=false in its namespace: the autoscaler leaves it alone"
    return ""


def known_of(
    entry: Entry, job: TrainingJob, mirror: Mirror, pods: list[Object], advice: Advice | None, term: int
) -> Known:
    """Everything about one job."""
    master = next((one for one in pods if _is(one, Replica.MASTER)), None)
    service = mirror.get(SERVICES, f"{job.namespace}/{names.master_name(job.name)}")
    return Known(
        wish=wish_of(job, entry.found, mirror),
        told=entry.told,
        master=reading.master(master) if master is not None else None,
        workers=reading.workers(one for one in pods if _is(one, Replica.WORKER)),
        has_service=service is not None and reading.owned_by(service, job.uid),
        advice=advice,
        term=term,
    )


def obstacle_to(job: TrainingJob, mirror: Mirror) -> str:
    """Somebody else's object has a name that the job needs; with the cure."""
    name = names.master_name(job.name)
    for collection, kind in ((PODS, "pod"), (SERVICES, "service")):
        found = mirror.get(collection, f"{job.namespace}/{name}")
        if found is None or reading.owned_by(found, job.uid):
            continue
        if any(owner["kind"] == "TrainingJob" for owner in found["metadata"].get("ownerReferences") or ()):
            return f"{kind} {name} of an earlier TrainingJob of this name is still being removed"
        cure = f"kubectl delete -n {job.namespace} {kind} {name}"
        return f"{kind} {name} belongs to another job. Delete it ({cure}), or choose another name."
    return ""


def _is(pod: Object, replica: Replica) -> bool:
    return bool((pod["metadata"].get("labels") or {}).get(names.TYPE_LABEL) == replica.value)
