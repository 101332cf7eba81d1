"""Who may say what in a rendezvous: members of a generation only, and each rank its own part only."""

from __future__ import annotations

import hmac

from edl_allreduce.core.protocol import KvPart, KvSet, Plan

LONGEST_VALUE = 96 * 1024
"""Bytes. An address of Gloo has 136, and a rank tells one for each other rank: enough for rings of 700. All
parts together then have 63 MiB, and no message may have more than 64 (`rpc.server.MAX_MESSAGE`)."""
LONGEST_KEY = 512


def ring_key(token: str, generation: int) -> bytes:
    """What the members of one ring know and nobody else does: who left the job's last ring does not belong
    to this one, and who listens to a proof of one generation learns nothing about the next."""
    return hmac.digest(token.encode(), b"edl ring %d" % generation, "sha256")


def is_stale(plan: Plan, message: KvSet | KvPart) -> bool:
    """It was said in a ring that is no more: nobody is to blame, and nobody waits for it."""
    return message.generation < plan.generation


def refusal(plan: Plan, uid: str, message: KvSet | KvPart) -> str:
    """Why this cannot be passed on to the members of `plan`; empty when it can."""
    rank = plan.rank_of(uid)
    if message.generation != plan.generation:
        return f"a key of generation {message.generation}, where {plan.generation} is the newest"
    if rank is None:
        return f"a key of generation {message.generation}, of which it is no member"
    if len(message.value) > LONGEST_VALUE or len(message.key) > LONGEST_KEY:
        return f"a key of {len(message.key)} characters with {len(message.value)} bytes"
    if isinstance(message, KvPart) and (message.number, message.of) != (rank, plan.size):
        return f"part {message.number} of {message.of}, where it has {rank} of {plan.size}"
    return ""
