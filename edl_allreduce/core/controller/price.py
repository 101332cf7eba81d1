"""What the loss of a worker would cost its job now, for whoever chooses between pods. Pure.

Kubernetes' own annotation: pods with a lower number go first. Ours counts seconds of work, of all workers
together: above the minimum a loss costs a pause, at the minimum the job stands still until another started.
"""

from __future__ import annotations

from typing import Final

from edl_allreduce.core.controller.mail import Progress

ANNOTATION: Final = "controller.kubernetes.io/pod-deletion-cost"
MOST: Final = 2**31 - 1


def price(said: Progress, minimum: int, running: int) -> int:
    """Of one worker that runs, in seconds of work, rounded up; 0 while nothing trains."""
    if not said.ring:
        return 0
    seconds = said.pause if running > minimum else said.pause + said.start_up
    return min(MOST, int(seconds * said.ring) + 1)


def worth_writing(before: str, now: int) -> bool:
    """Only when it is another magnitude: each write wakes everybody who watches pods."""
    if not before.lstrip("-").isdecimal() or len(before) > 10:
        return True
    held = max(0, int(before))
    return (held == 0) != (now == 0) or not held / 2 <= now <= held * 2
