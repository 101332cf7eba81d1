"""Who may say what in a rendezvous: members of a generation only, and each rank its own part only."""

from __future__ import annotations

import hmac
import re
from collections import Counter

from edl_allreduce.core.attendance.queries import HERE, NEXT
from edl_allreduce.core.protocol import KvPart, KvSet, Plan

LONGEST_VALUE = 96 * 1024
"""Bytes. An address of Gloo has 136, and a rank tells one for each other rank: enough for rings of 700. All
parts together then have 63 MiB, and no message may have more than 64 (`rpc.server.MAX_MESSAGE`)."""
LONGEST_KEY = 512
START = re.compile(rb"\[\d{1,16},\d{1,16}\]")
"""A step and a position in the data."""
PROCESS_SET = re.compile(r"_process_set_hash_[0-9a-f]{1,16}$")
"""Behind a group's name: some of its ranks, or all of them, which is how stock Horovod begins."""
NUMBER = re.compile(r"(?:rank_)?(0|[1-9]\d{0,6})")

Place = tuple[int, int]
"""A rank, and of how many."""


def ring_key(token: str, generation: int) -> bytes:
    """What the members of one ring know and nobody else does: who left the job's last ring does not belong
    to this one, and who listens to a proof of one generation learns nothing about the next."""
    return hmac.digest(token.encode(), b"edl ring %d" % generation, "sha256")


def is_stale(plan: Plan, message: KvSet | KvPart) -> bool:
    """It was said in a ring that is no more: nobody is to blame, and nobody waits for it."""
    return message.generation < plan.generation


def places(plan: Plan, rank: int) -> dict[str, Place]:
    """Horovod's groups, by the names that its keys begin with, and the place of a rank in each: all, those of
    its host, and those that have the same place on other hosts."""
    host = plan.members[rank].host
    local = [number for number, seat in enumerate(plan.members) if seat.host == host]
    local_rank = local.index(rank)
    on_host = Counter(seat.host for seat in plan.members)
    across = [name for name, count in on_host.items() if count > local_rank]
    return {
        "global": (rank, plan.size),
        f"local_{host}": (local_rank, len(local)),
        f"cross_{local_rank}": (across.index(host), len(across)),
    }


def refusal(plan: Plan, uid: str, message: KvSet | KvPart) -> str:
    """Why this cannot be passed on to the members of `plan`; empty when it can."""
    rank = plan.rank_of(uid)
    if message.generation != plan.generation:
        return f"a key of generation {message.generation}, where {plan.generation} is the newest"
    if rank is None:
        return f"a key of generation {message.generation}, of which it is no member"
    if len(message.value) > LONGEST_VALUE or len(message.key) > LONGEST_KEY:
        return f"a key of {len(message.key)} characters with {len(message.value)} bytes"
    if message.key in (NEXT, HERE):
        right = isinstance(message, KvSet) and START.fullmatch(message.value) is not None
    else:
        right = _is_its_own(plan, rank, message)
    return "" if right else f"in the rendezvous of rank {rank} of {plan.size} {_words(message)}"


def _is_its_own(plan: Plan, rank: int, message: KvSet | KvPart) -> bool:
    """A value under the key of another rank, or of all, would be taken for the address of somebody else."""
    path, _, name = message.key.rpartition("/")
    named = path.removeprefix("/")
    group = PROCESS_SET.sub("", named)
    place = (rank, plan.size) if group == "global" else places(plan, rank).get(group)
    if place is None or path != f"/{named}":
        return False
    if isinstance(message, KvPart):
        said, right = (message.number, message.of), name == f"all-{message.of}"
    else:
        number = NUMBER.fullmatch(name)
        said, right = (int(number[1]) if number else -1, place[1]), number is not None
    if named == group:
        return right and said == place
    # The ranks of a process set are in the group's order, so nobody's place in it is a higher one.
    return right and said[0] <= place[0] and said[1] <= place[1]


def _words(message: KvSet | KvPart) -> str:
    part = f"part {message.number} of {message.of} of " if isinstance(message, KvPart) else ""
    return f"{part}the key {message.key}, which is not its own"
