"""What happens to a worker's attendance, and what is to be done about it."""

from __future__ import annotations

from dataclasses import dataclass

from edl_allreduce.core import protocol
from edl_allreduce.core.protocol import Plan

# --------------------------------------------------------------------------------- from the connection


@dataclass(frozen=True)
class Begun:
    """The worker begins to attend."""


@dataclass(frozen=True)
class Heard:
    """The master said something over the present connection."""

    message: protocol.FromMaster


@dataclass(frozen=True)
class Closed:
    """The connection of this number ended, or did not come about."""

    link: int
    clean: bool
    """The master ended it in order, so it heard what was said before; False when it broke."""


@dataclass(frozen=True)
class Refused:
    """The master does not take this worker at all; there is no use in trying again."""

    why: str


# ----------------------------------------------------------------------------- from the training thread


@dataclass(frozen=True)
class IsReady:
    """Preparations are over."""

    message: protocol.Ready


@dataclass(frozen=True)
class Entering:
    """Goes into the ring of `plan`. `place`: where the holders of the model go on, for newcomers."""

    plan: Plan
    place: bytes | None = None


@dataclass(frozen=True)
class HasJoined:
    """The ring stands, and all agree on the state."""

    generation: int
    step: int
    position: int = 0


@dataclass(frozen=True)
class HasLeft:
    """Is out of its ring and waits. The reason is empty at a voted boundary."""

    step: int
    reason: str = ""


@dataclass(frozen=True)
class HasDeclined:
    """Will not come to the ring of `plan`: it was called off before this worker entered."""

    plan: Plan
    step: int


@dataclass(frozen=True)
class IsDone:
    """Trained the last step, or stopped as asked."""

    step: int
    stopped: bool = False
    position: int = 0
    loss: float = 0.0
    failure: str = ""
    warning: str = ""
    fingerprint: str = ""


@dataclass(frozen=True)
class TookOrder:
    """The training thread got the order to write the result."""


@dataclass(frozen=True)
class TookTask:
    """The training thread got the first of what was pulled."""


@dataclass(frozen=True)
class Said:
    """A report that changes nothing here."""

    message: protocol.FromWorker


# ------------------------------------------------------------------------------------ from other threads


@dataclass(frozen=True)
class Drained:
    """Was asked to leave at a step boundary (SIGTERM)."""


@dataclass(frozen=True)
class Prepared:
    """The attempt to connect to the next ring has ended, well or not."""

    generation: int


@dataclass(frozen=True)
class HangUp:
    """The worker is about to end."""


@dataclass(frozen=True)
class Tick:
    """Time passed."""


Event = (
    Begun | Heard | Closed | Refused | IsReady | Entering | HasJoined | HasLeft | HasDeclined | IsDone
    | TookOrder | TookTask | Said | Drained | Prepared | HangUp | Tick
)  # fmt: skip

# ---------------------------------------------------------------------------------------- instructions


@dataclass(frozen=True)
class Connect:
    """Open a connection to the master, and say `queries.introduction` over it before anything else."""

    link: int


@dataclass(frozen=True)
class Send:
    """Say this to the master."""

    message: protocol.FromWorker


@dataclass(frozen=True)
class CloseConnection:
    """Say all that was sent, then end the connection."""


@dataclass(frozen=True)
class OpenStore:
    """Begin the rendezvous of this plan."""

    plan: Plan


@dataclass(frozen=True)
class CloseStore:
    """Rendezvous up to this generation are superseded."""

    generation: int


@dataclass(frozen=True)
class Prepare:
    """Connect to the next ring while this one trains; answered by `Prepared`."""

    plan: Plan


@dataclass(frozen=True)
class Abort:
    """Make the rings up to this generation fail now."""

    generation: int


@dataclass(frozen=True)
class TellLost:
    """Tell people that the master does not answer any more, and that training goes on."""


@dataclass(frozen=True)
class Anomaly:
    """What cannot happen in this state has happened: told to people and to the master."""

    text: str


Instruction = Connect | Send | CloseConnection | OpenStore | CloseStore | Prepare | Abort | TellLost | Anomaly
