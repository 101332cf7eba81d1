"""What is known about one TrainingJob, what can be done about it, and what a verdict says: plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, StrEnum

from edl_allreduce.core.controller.mail import Orders, Progress
from edl_allreduce.core.trainingjob import Phase


class CleanUp(StrEnum):
    """Which pods of a job that is over are deleted."""

    RUNNING = "Running"
    ALL = "All"
    NONE = "None"


@dataclass(frozen=True)
class Wish:
    """What a TrainingJob asks for."""

    minimum: int
    maximum: int
    replicas: int | None = None
    """Set by a person or another autoscaler; None: ours decides."""
    suspend: bool = False
    ttl: float | None = None
    """Seconds after its end when the TrainingJob is deleted."""
    active_deadline: float | None = None
    """Seconds for which it may be active."""
    clean_up: CleanUp = CleanUp.RUNNING
    standby: int = 0
    """Worker pods beyond the target that are kept ready."""
    keeps_state: bool = True
    """A checkpoint is written when it is suspended; otherwise it would begin anew."""
    hands_off: str = ""
    """Why our autoscaler leaves it alone: a queue manages it, a switch says so; empty when it does not."""


@dataclass(frozen=True)
class Advice:
    """What the autoscaler says about the job."""

    target: int
    reason: str
    leaving: tuple[int, ...] = ()
    starts: float | None = None
    ends: float | None = None


class Stage(Enum):
    """Of a master's pod."""

    COMING = "coming"
    RUNNING = "running"
    LEAVING = "leaving"
    OVER = "over"


@dataclass(frozen=True)
class Master:
    """The pod of the job's master."""

    name: str
    uid: str
    stage: Stage
    text: str = ""
    """Why it is not running, in the cluster's words."""
    broken: bool = False
    """It waits for something that seldom comes by itself: an image that is not there."""
    until: float = 0.0
    """When it should be gone, of one that leaves; when it ended, of one that is over."""
    disrupted: bool = False
    """Its end was nobody's fault: preempted, drained, node lost."""
    crashes: int = 0
    """Of masters before it."""
    orders: Orders | None = None
    progress: Progress | None = None


@dataclass(frozen=True)
class Workers:
    """Pods of workers that have not ended."""

    running: int = 0
    coming: int = 0
    leaving: int = 0
    pods: tuple[str, ...] = ()
    """Names of all of them."""
    text: str = ""
    """Why the first that is coming is not there."""

    @property
    def any(self) -> bool:
        return bool(self.running or self.coming or self.leaving)

    def whole(self, target: int, standby: int) -> bool:
        """Whether nobody comes or leaves. Who comes beside as many as are wanted will stand by: nobody waits
        for it, and it may be Pending for ever."""
        most = target + standby
        return target <= self.running and self.running + self.coming <= most and not self.leaving

    def training(self, target: int, standby: int) -> int:
        """Those that run without those that stand by: nobody does while fewer than `target` run."""
        return self.running - min(standby, max(0, self.running - target))


@dataclass(frozen=True)
class Told:
    """What the status said before: the part that decides something."""

    phase: Phase = Phase.PENDING
    started: float | None = None
    """When its first master was made, or made again after a suspension."""
    finished: float | None = None
    progress: Progress = field(default_factory=Progress)
    """The last that was heard of any master."""
    crashes: int = 0
    """Masters in a row that ended without a word."""
    worked: str = ""
    """The uid of the last master under which training went on."""


@dataclass(frozen=True)
class Known:
    """Everything about one job."""

    wish: Wish
    told: Told
    master: Master | None = None
    workers: Workers = Workers()
    has_service: bool = False
    advice: Advice | None = None
    """None while nobody has planned yet."""
    term: int = 0


# ------------------------------------------------------------------------------------------ what to do


@dataclass(frozen=True)
class MakeMaster:
    """Secret, Service, NetworkPolicy, PodDisruptionBudget and pod, those that are not there yet."""

    orders: Orders
    crashes: int = 0
    progress: Progress | None = None
    """What an earlier master told last: the next one goes on from it."""


@dataclass(frozen=True)
class MakeService:
    """Somebody deleted it."""


@dataclass(frozen=True)
class Post:
    """Give the master other orders."""

    orders: Orders


@dataclass(frozen=True)
class DeleteMaster:
    """`force`: its node does not answer, so the API server forgets the pod."""

    uid: str
    force: bool = False


@dataclass(frozen=True)
class DeleteWorkers:
    """They leave as if a person had deleted their pods."""

    pods: tuple[str, ...]


@dataclass(frozen=True)
class DeleteEnded:
    """Pods that are over and were only kept for their logs."""


@dataclass(frozen=True)
class DeleteJob:
    """The TrainingJob itself: its time after the end is over."""


Action = MakeMaster | MakeService | Post | DeleteMaster | DeleteWorkers | DeleteEnded | DeleteJob


@dataclass(frozen=True)
class Verdict:
    """What is to be done, and where the job stands."""

    phase: Phase
    reason: str
    """One word for programs, as conditions have it."""
    message: str
    """For people."""
    target: int
    actions: tuple[Action, ...] = ()
    started: float | None = None
    finished: float | None = None
    progress: Progress = field(default_factory=Progress)
    why: str = ""
    """Why it should have so many workers."""
    crashes: int = 0
    worked: str = ""
    degraded: str = ""
    """What is not as it should be while the job goes on."""
    again: float | None = None
    """When to look again, if nothing else happens."""
