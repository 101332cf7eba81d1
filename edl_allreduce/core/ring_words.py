"""What Gloo and Horovod say about a broken ring, in words that name the peer and the cause.

They put a source file of theirs in front, an address in the middle and the peer's rank at the end:
`[/…/gloo/transport/tcp/pair.cc:583] Read error [127.0.0.1]:26517: Connection reset by peer (rank 0)`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

LONGEST: Final = 200

_SHUT_DOWN: Final = "Horovod has been shut down"
_PLACE: Final = re.compile(r"^.*?\[(?:enforce fail at )?[^\]]*\.(?:cc|cpp|cu|h):\d+\]\s*")
_RANK: Final = re.compile(r"\s*\(rank (\d+)\)\s*$")
_ADDRESS: Final = r"(?:\[[^\]]*\]:\d+|[\w.:-]+:\d+|\S*)"

# The first that matches speaks. {peer} is "rank 0", or "another rank" where Gloo does not say which.
_PHRASES: Final[Sequence[tuple[re.Pattern[str], str]]] = tuple(
    (re.compile(pattern), phrase)
    for pattern, phrase in (
        (rf"^Read error {_ADDRESS}: (?P<why>.+)$", "lost the connection to {peer}: {why}"),
        (rf"^writev {_ADDRESS}: (?P<why>.+)$", "lost the connection to {peer}: {why}"),
        (rf"^Connection closed by peer\b.*{_ADDRESS}$", "lost the connection to {peer}: it was closed there"),
        (r"^Socket (?:unexpectedly )?closed\b", "lost the connection to {peer}: it is closed"),
        (r"^(?:Read|Write) timeout\b", "{peer} did not answer in time"),
        (r"^Connect timeout\b", "{peer} could not be reached in time"),
        (rf"^connect (?:{_ADDRESS})?: (?P<why>.+)$", "{peer} could not be reached: {why}"),
        (r"^(?:socket|setsockopt|bind|listen|accept|connect): (?P<why>.+)$",
         "no connection to {peer}: {why}"),
        (r"^Timed out waiting (?P<ms>\d+)ms for (?:recv|send) operation",
         "{peer} did not answer for {ms} ms"),
        (r"^Application timeout caused pair closure", "gave up after another rank did not answer in time"),
        (r"^Aborted on request", "was told to leave the ring"),
        (r"^Wait timeout after (?P<seconds>\d+) seconds for key",
         "the others did not come to the meeting within {seconds} s"),
        (r"^Rendezvous: \S+ \S+ at \S+: (?P<why>.+)$", "the ring's members could not be looked up: {why}"),
        (r"^op\.preamble\.length <= op\.nbytes\. (?P<got>\d+) vs (?P<expected>\d+)",
         "{peer} sent {got} bytes where {expected} belong: it does not train the same model"),
        (r"^there are no connections", "there is no ring"),
    )
)  # fmt: skip


def plain(words: str) -> str:
    """What happened, without source files and addresses; unknown words stay as they are."""
    said = _telling_line(words)
    if not said:
        return "the ring broke without a word"
    rank = _RANK.search(said)
    said = _RANK.sub("", _PLACE.sub("", said)).strip()
    peer = f"rank {rank[1]}" if rank else "another rank"
    for pattern, phrase in _PHRASES:
        if found := pattern.search(said):
            parts = {name: _lowered(value) for name, value in found.groupdict().items()}
            return phrase.format(peer=peer, **parts)[:LONGEST]
    return (f"{said} ({peer})" if rank else said)[:LONGEST]


def with_workers(reason: str, worker_ids: Sequence[int]) -> str:
    """`rank 0` becomes `rank 0 (worker 4)`: people know workers by their numbers. In rank order."""

    def named(found: re.Match[str]) -> str:
        rank = int(found[1])
        return f"{found[0]} (worker {worker_ids[rank]})" if rank < len(worker_ids) else found[0]

    return re.sub(r"\brank (\d{1,6})\b(?! \(worker)", named, reason)


def _telling_line(words: str) -> str:
    """The line that says what happened, out of what TensorFlow and Horovod wrap around it."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    telling = [line for line in lines if _SHUT_DOWN in line or _PLACE.match(line)]
    frames = [number for number, line in enumerate(lines) if line.startswith('File "')]
    after = lines[frames[-1] + 1 :] if frames else []
    first = (telling or after or lines or [""])[0]
    general, _, cause = first.partition("Cause: ")
    if cause:
        return cause.strip()
    if _SHUT_DOWN in general:
        return "the ring was shut down by another rank's failure"
    return general


def _lowered(text: str) -> str:
    """An operating system's words in the middle of a sentence."""
    return text[:1].lower() + text[1:] if text[1:2].islower() else text
