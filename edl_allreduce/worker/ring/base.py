"""What a ring is to everybody else: the one Protocol that training, the worker's attendant and tests know.

    solo.py      a ring of one, without any library
    fixed.py     the ring of a launcher, there from the beginning
    horovod.py   the elastic ring: made and left as plans come
    testing/     `FakeRing`: several ranks in one process

Behind the last two real ones: `collectives.py` (operations), `library.py` (the only module that imports
Horovod), `parcels.py` (state in pieces), `errors.py` (whose words a failure has), `sockets.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from edl_allreduce.core.protocol import Plan

if TYPE_CHECKING:  # NumPy starts threads: a worker blocks its signals before it imports it
    import numpy as np

Arrays: TypeAlias = "list[np.ndarray[Any, Any]]"


class Ring(Protocol):
    """The workers that sum together, as one of them sees it.

    `prepare` and `abort` may come from any thread and `generation` may be read by any; the rest belongs to
    the training thread. Whatever fails because of others raises RingBroken: the ring must then be left.
    """

    rank: int
    """Kept after the ring was left, until another is joined."""
    size: int

    @property
    def generation(self) -> int:
        """The ring that this process is in or is entering, else the one that it connects to; 0 for none."""

    # -------------------------------------------------------------------------------- coming and going

    def prepare(self, plan: Plan, uid: str, then: Callable[[], None]) -> None:
        """Connect to the ring of `plan` while the present one works; `then` is called when that ended, well
        or not. All members do it: a ring of which one member failed here cannot be joined."""

    def join(self, plan: Plan, uid: str) -> None:
        """Enter the ring of `plan`; raises RingBroken when it does not come about."""

    def leave(self) -> None:
        """Disconnect. Afterwards no operation of this ring is under way."""

    def abort(self, generation: int) -> None:
        """Make the ring of this generation fail now, while it forms or works, although no peer hangs up."""

    def close(self) -> None:
        """This process needs no ring any more."""

    # -------------------------------------------------------------------------------------- operations

    def sum(self, tensors: Sequence[Any], group: int = 0, *, halved: bool = False) -> list[Any]:
        """All tensors summed over the ring, as one operation that succeeds or fails as a whole. They are of
        the framework that trains. Several may be under way in one graph, each with a number of its own, which
        is the same on all ranks; which of them ends first is open. `halved`: they travel and are added as
        16-bit floats, and what is too large for these becomes infinite."""

    def gather(self, values: Sequence[int]) -> list[list[int]]:
        """The values of every rank, in rank order."""

    def share_state(self, arrays: Arrays, root: int, takers: Sequence[int]) -> Arrays:
        """On the ranks that take: the arrays of `root`, which all others have as well, in place of these of
        the same kinds."""


class StandingRing:
    """A ring that is there from the beginning and never changes, so nothing is to be done for a plan."""

    generation = 0
    """No plan is ever aborted here."""

    def prepare(self, plan: Plan, uid: str, then: Callable[[], None]) -> None:
        then()

    def join(self, plan: Plan, uid: str) -> None:
        """It is joined."""

    def leave(self) -> None:
        """Stay connected: it forms only once."""

    def abort(self, generation: int) -> None:
        """Nobody re-forms it."""

    def close(self) -> None:
        """Nobody is left behind."""
