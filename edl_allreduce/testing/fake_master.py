"""A master for engines in one process: it plans rings, without network and without a clock.

It does what the real one does on a good day: when all living members of a ring are out of it, the next plan
comes; when all are done, rank 0 exports and everybody is released. Everything else is the test's: `plan`,
`stop`, `lose`, and `FakeOrders.drain`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from edl_allreduce.core import protocol
from edl_allreduce.core.attendance.state import Leave, MasterGone, NextOrder
from edl_allreduce.core.protocol import Plan, Seat
from edl_allreduce.testing.fake_ring import PATIENCE_SECONDS, Meeting
from edl_allreduce.worker.loop.orders import Progress, StartPoint

Message = TypeVar("Message", bound=protocol.FromWorker)


class FakeMaster:
    """Knows all workers of a test and what they said."""

    def __init__(self, meeting: Meeting) -> None:
        self.meeting = meeting
        self.changed = threading.Condition()
        self.workers: dict[str, FakeOrders] = {}
        self.plans: list[protocol.NewPlan] = []
        self.said: list[tuple[str, protocol.FromWorker]] = []
        """Who said what, in order."""
        self.doomed = 0
        self.starts: dict[int, StartPoint] = {}
        """By generation: where its ring begins, as a member of the old one said beforehand."""
        self.held: set[int] = set()
        """Generations to which somebody comes who holds the state."""
        self.stopping = False
        self.failure = ""
        self.releases = False
        self._exports = ""
        """Who writes the result."""

    def worker(self, number: int) -> FakeOrders:
        orders = FakeOrders(self, Seat(f"worker-{number}", number, "127.0.0.1"))
        self.workers[orders.seat.uid] = orders
        return orders

    def heard(self, kind: type[Message], of: FakeOrders | None = None) -> list[Message]:
        """The messages of this kind, from one worker or all."""
        return [m for uid, m in self.said if isinstance(m, kind) and (of is None or of.seat.uid == uid)]

    def plan(self, *members: FakeOrders, abort: bool = False, reason: str = "the test wants it") -> None:
        """The ring of the next generation. With `abort` the present one ends at once."""
        with self.changed:
            generation = len(self.plans) + 1
            seats = tuple(orders.seat for orders in members)
            if abort and self.plans:
                self.doomed = generation - 1
                self.meeting.break_ring(self.doomed, "a member is lost")
            self.plans.append(protocol.NewPlan(Plan(generation, seats), abort, reason))
            self.changed.notify_all()

    def stop(self) -> None:
        """All stop at the next step boundary."""
        self.stopping = True

    def lose(self, orders: FakeOrders) -> None:
        """This worker died: the others go on without it."""
        with self.changed:
            orders.alive = False
            self._go_on()

    @property
    def newest(self) -> protocol.NewPlan | None:
        return self.plans[-1] if self.plans else None

    def members(self) -> list[FakeOrders]:
        """Of the newest ring."""
        return [self.workers[seat.uid] for seat in self.newest.plan.members] if self.newest else []

    def hear(self, orders: FakeOrders, message: protocol.FromWorker) -> None:
        with self.changed:
            self.said.append((orders.seat.uid, message))
            match message:
                case protocol.Out(generation):
                    orders.outside = max(orders.outside, generation)
                    self._go_on()
                case protocol.Done(generation, failure=failure):
                    orders.done_in = generation
                    self.failure = self.failure or failure
                    self._go_on()
                case protocol.Exported():
                    self.releases = True
            self.changed.notify_all()

    def _go_on(self) -> None:
        newest = self.newest
        living = [orders for orders in self.members() if orders.alive]
        if newest is None or not living:
            return
        generation = newest.plan.generation
        if all(orders.done_in == generation for orders in living):
            if self.failure:
                self.releases = True
            else:
                self._exports = living[0].seat.uid
        elif all(generation in (orders.outside, orders.done_in) for orders in living):
            self.plan(*living, abort=True, reason="the ring broke")
        self.changed.notify_all()

    def pending(self, orders: FakeOrders, generation: int) -> NextOrder | None:
        if orders.last is not None:
            return orders.last
        if self.releases:
            return protocol.Release()
        if self._exports == orders.seat.uid:
            self._exports = ""
            return protocol.Export()
        newest = self.newest
        if newest is not None and newest.plan.generation > generation:
            if newest.plan.rank_of(orders.seat.uid) is not None:
                return newest
            if orders.draining:
                return Leave()
        return None


class FakeOrders:
    """What one engine hears and says; see `worker.loop.orders.Orders`."""

    def __init__(self, master: FakeMaster, seat: Seat) -> None:
        self.seat = seat
        self.progress = Progress()
        self.draining = False
        self.deserted = False
        self.alive = True
        self.outside = 0
        """The last generation that this worker left before its time."""
        self.done_in = 0
        self.last: protocol.Evicted | MasterGone | None = None
        """The end, if the test wants it."""
        self._master = master
        self._generation = 0

    def drain(self) -> None:
        """Ask this worker to leave."""
        self.draining = True

    def end_with(self, last: protocol.Evicted | MasterGone) -> None:
        """The next order, whatever else is to be done."""
        with self._master.changed:
            self.last = last
            self._master.changed.notify_all()

    def next_order(self, generation: int) -> NextOrder:
        found: list[NextOrder] = []

        def pending() -> bool:
            order = self._master.pending(self, generation)
            found.extend([] if order is None else [order])
            return bool(found)

        self._wait(pending)
        return found[0]

    def upcoming(self, generation: int) -> Plan | None:
        newest = self._master.newest
        if newest is None or newest.plan.generation <= generation:
            return None
        return newest.plan if newest.plan.rank_of(self.seat.uid) is not None else None

    def announce(self, plan: Plan, place: StartPoint) -> None:
        with self._master.changed:
            self._master.starts[plan.generation] = place
            self._master.changed.notify_all()

    def wait_for_place(self, generation: int) -> StartPoint | None:
        self._wait(
            lambda: (
                generation in self._master.starts
                or generation in self._master.held
                or self._superseded(generation)
            )
        )
        return self._master.starts.get(generation)

    def wait_for_company(self, generation: int) -> bool:
        self._wait(lambda: generation in self._master.held or self._superseded(generation))
        return generation in self._master.held

    def _superseded(self, generation: int) -> bool:
        newest = self._master.newest
        return newest is not None and newest.plan.generation > generation

    def entering(self, plan: Plan, place: StartPoint | None) -> bool:
        with self._master.changed:
            self._generation = plan.generation
            if place is not None:
                self._master.held.add(plan.generation)
                self._master.starts.setdefault(plan.generation, place)
                self._master.changed.notify_all()
            return plan.generation > self._master.doomed

    def joined(self, generation: int, step: int, position: int) -> None:
        self.send(protocol.Joined(generation, step, position))

    def vote(self, generation: int) -> tuple[bool, bool]:
        """Whoever leaves lets those decide who stay."""
        newest = self._master.newest
        switch = False
        if newest is not None and newest.plan.generation > generation:
            ring = self._master.plans[generation - 1].plan.members
            stay = [seat.uid for seat in ring if newest.plan.rank_of(seat.uid) is not None]
            switch = not stay or self.seat.uid in stay
        return switch or isinstance(self.last, MasterGone), self._master.stopping

    def doomed(self, generation: int) -> bool:
        return generation <= self._master.doomed

    def declined(self, plan: Plan, step: int) -> None:
        self.send(protocol.Out(plan.generation, step, "called off before it entered"))

    def left(self, step: int, reason: str) -> None:
        self.send(protocol.Out(self._generation, step, reason))

    def switching(self, step: int) -> None:
        """The next plan is there already."""

    def done(self, step: int, *, stopped: bool, failure: str, warning: str, fingerprint: str = "") -> None:
        last = self.progress
        told = (last.position, last.loss, failure, warning, fingerprint)
        self.send(protocol.Done(self._generation, step, stopped, *told))

    def send(self, message: protocol.FromWorker) -> None:
        self._master.hear(self, message)

    def _wait(self, ready: Callable[[], bool]) -> None:
        with self._master.changed:
            if not self._master.changed.wait_for(ready, PATIENCE_SECONDS):
                raise AssertionError(f"{self.seat.uid} waits for ever")
