"""List, then watch, for ever: a collection of objects as it changes.

A watch ends for many reasons: the server's time limit, a restart, a cut connection, a version that is too
old. None of them loses an event: it goes on from the last version seen, or with a new list.
"""

from __future__ import annotations

import json
import logging
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from edl_allreduce import clock
from edl_allreduce.cluster.kubernetes.names import Object
from edl_allreduce.core.deadlines import doubled
from edl_allreduce.errors import ApiRefused, ClusterError, ClusterUnreachable

log = logging.getLogger(__name__)

WATCH_SECONDS = 60
"""The server ends a watch after so long. Short, because a server that froze says nothing either."""
SILENCE_SECONDS = WATCH_SECONDS + 15
FIRST_DELAY = 0.2
LONGEST_DELAY = 15.0
"""Between two tries, doubled each time: an API server that restarts is soon back."""
GONE = 410
ANEW = frozenset({400, 404, GONE})
"""Answers after which only a new list helps."""
POD = {"apiVersion": "v1", "kind": "Pod"}


class Lister(Protocol):
    """The part of the API that is needed here."""

    def get(self, path: str, **query: str | int) -> Object: ...

    def lines(self, path: str, timeout: float, **query: str | int) -> Any: ...


@dataclass(frozen=True)
class Listed:
    """Everything that there was when it was asked for, at `asked`."""

    objects: list[Object]
    asked: float


@dataclass(frozen=True)
class Changed:
    """An object is new or different."""

    object: Object


@dataclass(frozen=True)
class Removed:
    """An object is gone; this is how it was last."""

    object: Object


Seen = Listed | Changed | Removed


class _TooOld(Exception):
    """The server no longer knows the version from which the watch should go on."""


class Watcher:
    """Follows one collection. `run` blocks until `close`; give it a thread."""

    def __init__(
        self,
        api: Lister,
        path: str,
        chosen: Mapping[str, str],
        deliver: Callable[[Seen], None],
        *,
        kind: Mapping[str, str] = POD,
        what: str = "the job's pods",
    ) -> None:
        """`chosen`: labelSelector, fieldSelector; `kind`: apiVersion and kind, which items of a list lack."""
        self._api = api
        self._path = path
        self._chosen = dict(chosen)
        self._deliver = deliver
        self._kind = dict(kind)
        self._what = what
        self._closed = threading.Event()
        self._failures = 0

    def close(self) -> None:
        self._closed.set()

    def run(self) -> None:
        version = ""
        while not self._closed.is_set():
            try:
                if not version:
                    version = self._list()
                version = self._watch(version)
            except _TooOld:
                version = ""
                self._pause("its events are too old to go on from; listing anew")
            except ClusterError as error:
                if isinstance(error, ApiRefused) and error.status in ANEW:
                    version = ""
                self._pause(str(error), getattr(error, "retry_after", 0.0))
            except Exception as error:
                # The supervisor of this thread: without it no end of a pod would ever be heard again.
                version = ""
                log.exception("the watch of %s met what it does not understand; it begins anew", self._what)
                self._pause(f"{type(error).__name__}: {error}")

    def _list(self) -> str:
        asked = clock.now()
        answer = self._api.get(self._path, **self._chosen)
        self._deliver(Listed([{**self._kind, **item} for item in answer.get("items") or []], asked))
        return str(answer["metadata"]["resourceVersion"])

    def _watch(self, version: str) -> str:
        """Until the server ends it; returns the version to go on from."""
        lines = self._api.lines(
            self._path,
            SILENCE_SECONDS,
            **self._chosen,
            watch="true",
            allowWatchBookmarks="true",
            resourceVersion=version,
            timeoutSeconds=WATCH_SECONDS,
        )
        try:
            for line in lines:
                if self._closed.is_set():
                    break
                version = self._event(line) or version
                self._failures = 0
        except ClusterUnreachable:
            # What was seen counts: a list for each cut would be a burden on the server.
            log.debug("the watch was cut after version %s", version)
            self._pause("the watch was cut")
        return version

    def _event(self, line: bytes) -> str:
        try:
            event = json.loads(line)
        except ValueError:
            return ""  # half a line of a stream that was cut
        kind, found = event["type"], event["object"]
        if kind == "ERROR":
            if found.get("code") == GONE:
                raise _TooOld
            raise ApiRefused(str(found.get("message", found)), status=int(found.get("code", 0)))
        if kind == "DELETED":
            self._deliver(Removed(found))
        elif kind != "BOOKMARK":
            self._deliver(Changed(found))
        return str(found["metadata"]["resourceVersion"])

    def _pause(self, why: str, at_least: float = 0.0) -> None:
        delay = doubled(FIRST_DELAY, self._failures, LONGEST_DELAY)
        self._failures += 1
        if self._failures in (3, 10) or self._failures % 50 == 0:
            log.warning("cannot watch %s (%d times in a row): %s", self._what, self._failures, why)
        self._closed.wait(max(at_least, delay * (0.5 + random.random() / 2)))
