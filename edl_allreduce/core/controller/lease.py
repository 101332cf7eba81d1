"""Who of several controllers acts: decisions over one Lease. Pure; time is the asker's own clock.

Nobody compares clocks of two machines: a follower notes when it *saw* the lease change last, and takes it
when it has not changed for as long as its holder promised. A leader stops by itself a little earlier than
that, so that at each moment at most one believes to lead, as long as clocks run equally fast. What it had
begun to write when it was frozen is refused by the API server: every write names the version that it read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

DURATION: Final = 15.0
"""Seconds without a renewal after which others may take the lease."""
RENEWAL: Final = 10.0
"""Seconds after the last renewal at which a leader stops acting: well before others may take the lease."""
RETRY: Final = 2.0
"""Seconds between two looks."""


@dataclass(frozen=True)
class Lease:
    """What is written in it."""

    holder: str
    term: int
    """Grows by one with each new holder."""
    version: str
    """The API server's resourceVersion: changes with each write."""
    duration: float = DURATION


@dataclass(frozen=True)
class Standing:
    """What one controller knows."""

    me: str
    seen: Lease | None = None
    seen_at: float = 0.0
    """When this version of it was first seen."""
    renewed_at: float | None = None
    """When this controller *sent* its last renewal that was accepted; None while it does not lead."""

    def leads(self, now: float) -> bool:
        """Whether it may act."""
        return self.renewed_at is not None and now < self.renewed_at + RENEWAL

    @property
    def term(self) -> int:
        return self.seen.term if self.seen is not None else 0


@dataclass(frozen=True)
class Create:
    """There is no lease: make it."""

    lease: Lease


@dataclass(frozen=True)
class Take:
    """Write this over the version that was seen; if that is no longer the newest, somebody was quicker."""

    lease: Lease
    why: str


@dataclass(frozen=True)
class Follow:
    """Somebody else leads."""

    why: str


def seen(standing: Standing, lease: Lease | None, now: float) -> Standing:
    """After a look at the lease."""
    if lease is None:
        return replace(standing, seen=None, seen_at=now, renewed_at=None)
    changed = standing.seen is None or standing.seen.version != lease.version
    lost = lease.holder != standing.me
    return replace(
        standing,
        seen=lease,
        seen_at=now if changed else standing.seen_at,
        renewed_at=None if lost else standing.renewed_at,
    )


def decide(standing: Standing, now: float) -> Create | Take | Follow:
    """What to do about it, after `seen`."""
    lease = standing.seen
    if lease is None:
        return Create(Lease(standing.me, 1, ""))
    if lease.holder == standing.me:
        if standing.leads(now):
            return Take(replace(lease, duration=DURATION), "renews")
        # It may have been frozen: others may have acted on what they saw, so this is a new term.
        return Take(Lease(standing.me, lease.term + 1, lease.version), "leads again")
    if not lease.holder:
        return Take(Lease(standing.me, lease.term + 1, lease.version), "the last leader stepped down")
    silent = now - standing.seen_at
    if silent >= lease.duration:
        words = f"{lease.holder} has not renewed for {silent:.0f} s"
        return Take(Lease(standing.me, lease.term + 1, lease.version), words)
    return Follow(f"{lease.holder} leads")


def written(standing: Standing, lease: Lease, sent_at: float) -> Standing:
    """After a write that was accepted; `lease` with the version that it got."""
    return replace(standing, seen=lease, seen_at=sent_at, renewed_at=sent_at)
