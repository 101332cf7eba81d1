"""Where the time of one worker went: every second since it began, in exactly one bucket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edl_allreduce import clock
from edl_allreduce.core.goodput import Bucket


@dataclass(frozen=True)
class _Page:
    since: float
    """Until here all time is in a bucket."""
    seconds: Mapping[str, float]
    expected: Bucket | None
    """The bucket of the time since then, where that is certain; a step is judged when it is over."""


class Ledger:
    """Written by the training thread, read by whoever sends heartbeats: a page is replaced as a whole."""

    def __init__(self) -> None:
        self._page = _Page(clock.now(), {}, Bucket.STARTUP)

    def read(self) -> dict[str, float]:
        """Seconds by bucket; none of them ever shrinks."""
        page = self._page
        seconds = dict(page.seconds)
        if page.expected is not None:
            seconds[page.expected] = seconds.get(page.expected, 0.0) + clock.now() - page.since
        return seconds

    def close(self, bucket: Bucket, then: Bucket | None = None) -> None:
        """What passed since the last word goes into this bucket; what comes now will go into `then`."""
        self.split({}, bucket, then)

    def split(self, parts: Mapping[Bucket, float], rest: Bucket, then: Bucket | None = None) -> None:
        """What passed since the last word: so many seconds in these buckets, and the rest in that one."""
        now, page = clock.now(), self._page
        seconds, left = dict(page.seconds), now - page.since
        for bucket, wanted in parts.items():
            spent = min(max(0.0, wanted), left)
            seconds[bucket] = seconds.get(bucket, 0.0) + spent
            left -= spent
        seconds[rest] = seconds.get(rest, 0.0) + left
        self._page = _Page(now, seconds, then)

    @property
    def expected(self) -> Bucket | None:
        """Where the present time will go, if that is certain."""
        return self._page.expected
