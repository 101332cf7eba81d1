"""Who sits where while a plan is made: workers on nodes, with a way back from what did not work out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from edl_allreduce.core.autoscale.cluster import Ask, Cluster, Pod, Role, Room
from edl_allreduce.core.autoscale.jobs import Job


@dataclass(frozen=True, eq=False)
class Seat:
    """A worker's place on a node. Without a pod it is one that is to come."""

    job: str
    node: str
    pod: str | None = None


class Table:
    """The cluster with its jobs' workers, which may leave, and all the rest, which may not."""

    def __init__(self, cluster: Cluster, jobs: Sequence[Job], pods: Sequence[Pod]) -> None:
        templates = [job.worker for job in jobs] + [job.master for job in jobs if job.master is not None]
        self.room = Room(cluster.nodes, [*templates, *(pod.asks for pod in pods)])
        self.seats: dict[str, list[Seat]] = {job.name: [] for job in jobs}
        self.left: list[Seat] = []
        """Seats that were given up, with the pods that should be drained."""
        self.drained: Counter[str] = Counter()
        """How many of them have a pod, by job."""
        self._on: dict[str, dict[Seat, None]] = {}
        self._asks = {job.name: self.room.ask(job.worker) for job in jobs}
        self._undo: list[Callable[[], None]] = []
        placed = [pod for pod in pods if pod.node is not None and self.room.knows(pod.node)]
        seated = _seated(jobs, placed)
        for pod in placed:
            assert pod.node is not None
            if pod.name in seated:
                self.sit(Seat(pod.job, pod.node, pod.name))
            else:
                self.room.take(pod.node, self.room.ask(pod.asks))
        self._undo.clear()

    def size(self, job: str) -> int:
        return len(self.seats[job])

    def to_drain(self, job: str) -> tuple[str, ...]:
        return tuple(seat.pod for seat in self.left if seat.job == job and seat.pod is not None)

    def ask(self, job: str) -> Ask:
        return self._asks[job]

    # ------------------------------------------------------------------------- moves that can be taken back

    def sit(self, seat: Seat) -> None:
        self.room.take(seat.node, self._asks[seat.job])
        self.seats[seat.job].append(seat)
        self._on.setdefault(seat.node, {})[seat] = None
        self._undo.append(lambda: self._remove(seat))

    def leave(self, seat: Seat) -> None:
        self._remove(seat)
        self.left.append(seat)
        self.drained[seat.job] += seat.pod is not None

        def back() -> None:
            self.left.remove(seat)
            self.drained[seat.job] -= seat.pod is not None
            self.sit(seat)
            self._undo.pop()

        self._undo.append(back)

    def stay_after_all(self, job: str) -> None:
        """Whoever of this job was to leave and still has room does not."""
        for seat in [seat for seat in self.left if seat.job == job]:
            if self.room.has_room(seat.node, self._asks[job]):
                self.left.remove(seat)
                self.drained[job] -= seat.pod is not None
                self._undo.append(partial(self._leaves_again, seat))
                self.sit(seat)

    def _leaves_again(self, seat: Seat) -> None:
        self.left.append(seat)
        self.drained[seat.job] += seat.pod is not None

    def occupy(self, node: str, ask: Ask) -> None:
        """For a pod that stays."""
        self.room.take(node, ask)
        self._undo.append(lambda: self.room.give(node, ask))

    def _remove(self, seat: Seat) -> None:
        self.room.give(seat.node, self._asks[seat.job])
        self.seats[seat.job].remove(seat)
        del self._on[seat.node][seat]

    def when_undone(self, action: Callable[[], None]) -> None:
        """Something else to take back with the moves."""
        self._undo.append(action)

    def mark(self) -> int:
        return len(self._undo)

    def back_to(self, mark: int) -> None:
        while len(self._undo) > mark:
            self._undo.pop()()

    # ------------------------------------------------------------------------------------- finding a place

    def free_node(self, job: str, load: float) -> str | None:
        """A node with room for one more worker, first where the job is already: its ring is shorter there."""
        ask = self._asks[job]
        if not self.room.within(ask, load):
            return None
        if self.seats[job] and self.room.fits(self.seats[job][-1].node, ask):
            return self.seats[job][-1].node
        return self.room.find(ask)

    def expendable(self, job: str, count: int) -> list[Seat]:
        """Those who would leave first: who has not come yet, then the youngest."""
        seats = self.seats[job]
        return sorted(reversed(seats), key=lambda seat: seat.pod is not None)[:count]

    def way(self, ask: Ask, donors: Iterable[tuple[str, int]]) -> tuple[str, list[Seat]] | None:
        """A node on which this would fit once some workers had left, and which.

        `donors`: jobs that may give workers, the least loss first, and how many each may give. One worker is
        better than several, the first donor better than the next; of several the fewest.
        """
        willing = list(donors)
        if not willing:
            return None
        for job, _ in willing:
            tried = set()
            for seat in self.expendable(job, len(self.seats[job])):
                if seat.node not in tried and self.room.fits(seat.node, ask, self._asks[job]):
                    return seat.node, [seat]
                tried.add(seat.node)
        return self._way_with_several(ask, dict(willing))

    def _way_with_several(self, ask: Ask, most: Mapping[str, int]) -> tuple[str, list[Seat]] | None:
        order = {job: number for number, job in enumerate(most)}
        best: tuple[str, list[Seat]] | None = None
        for node, seats in self._on.items():
            if not self.room.admits(node, ask):
                continue
            leaving: list[Seat] = []
            counts: dict[str, int] = {}
            youngest = (one for one in reversed(seats) if one.job in order)
            for seat in sorted(youngest, key=lambda one: order[one.job]):
                if counts.get(seat.job, 0) < most[seat.job]:
                    counts[seat.job] = counts.get(seat.job, 0) + 1
                    leaving.append(seat)
                if best is not None and len(leaving) >= len(best[1]):
                    break
                if self._fits_without(node, ask, leaving):
                    best = node, self._needed(node, ask, leaving)
                    break
        return best

    def _fits_without(self, node: str, ask: Ask, leaving: Iterable[Seat]) -> bool:
        return self.room.fits(node, ask, *(self._asks[seat.job] for seat in leaving))

    def _needed(self, node: str, ask: Ask, leaving: list[Seat]) -> list[Seat]:
        """Without those that turned out to be superfluous."""
        for seat in list(leaving):
            rest = [one for one in leaving if one is not seat]
            if self._fits_without(node, ask, rest):
                leaving = rest
        return leaving


def _seated(jobs: Sequence[Job], placed: Sequence[Pod]) -> set[str]:
    """The pods that count as workers of a job whose size is planned. Those that stand by keep their room and
    count for nothing: a job that shrinks lets others go. They are the youngest, because whoever takes a place
    is replaced; a job that is to end has none."""
    workers: dict[str, list[str]] = {job.name: [] for job in jobs if job.managed}
    for pod in placed:
        if pod.role is Role.WORKER and pod.job in workers and not pod.terminating:
            workers[pod.job].append(pod.name)
    seated: set[str] = set()
    for job in jobs:
        mine = workers.get(job.name, [])
        spare = min(job.standby, max(0, len(mine) - job.workers)) if job.workers else 0
        seated.update(mine[: len(mine) - spare])
    return seated
