"""What workers say, as events of the machine; uids are letters in these tests."""

from __future__ import annotations

from edl_allreduce.core import protocol
from edl_allreduce.core.membership.types import Heard
from edl_allreduce.core.protocol import Plan, Seat


def hello(
    seat: Seat,
    plan: Plan | None = None,
    step: int = 0,
    done: bool = False,
    joined: bool = True,
    has_state: bool = True,
    generation: int = 0,
    link: int = 0,
) -> Heard:
    """Most who come back with a plan are in its ring."""
    return Heard(seat.uid, protocol.Hello(seat, plan, step, done, joined, has_state, generation), link)


def ready(uid: str, step: int = 0, has_state: bool = False) -> Heard:
    return Heard(uid, protocol.Ready(step, has_state))


def entered(uid: str, generation: int) -> Heard:
    return Heard(uid, protocol.Entered(generation))


def joined(uid: str, generation: int, step: int) -> Heard:
    return Heard(uid, protocol.Joined(generation, step))


def out(uid: str, generation: int, step: int, reason: str = "") -> Heard:
    return Heard(uid, protocol.Out(generation, step, reason))


def done(uid: str, generation: int, step: int) -> Heard:
    return Heard(uid, protocol.Done(generation, step))


def draining(uid: str) -> Heard:
    return Heard(uid, protocol.Draining())
