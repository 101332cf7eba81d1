"""What all workers of a job must have in common, by name, and what differs when somebody has not."""

from __future__ import annotations

from collections.abc import Mapping

Course = Mapping[str, str]
"""Each thing that must be the same, and a short text or a digest of what it is."""

DIGEST = "sha256:"
"""Begins a value that says nothing to people."""
SHOWN_DIFFERENCES = 6
SHOWN_CHARACTERS = 60


def differences(rest: Course, own: Course) -> str:
    """In words: what a worker has of its own where the rest agree; empty if nothing."""
    named = [*rest, *(name for name in own if name not in rest)]
    found = [_difference(name, rest.get(name), own.get(name)) for name in named]
    told = [text for text in found if text]
    more = len(told) - SHOWN_DIFFERENCES
    return "; ".join(told[:SHOWN_DIFFERENCES]) + (f"; and {more} more" if more > 0 else "")


def _difference(name: str, rest: str | None, own: str | None) -> str:
    if rest == own:
        return ""
    if rest is None or own is None:
        return f"{name} (only {'the rest have' if own is None else 'it has'} that)"
    if rest.startswith(DIGEST):
        return name
    return f"{name} ({_short(own)}, the rest {_short(rest)})"


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"
