"""The list/watch loop against a scripted server: whatever ends a watch, no event is lost."""

from __future__ import annotations

import json
from collections import deque

import pytest

from edl_allreduce.cluster.kubernetes import watching
from edl_allreduce.cluster.kubernetes.watching import Changed, Listed, Removed, Watcher
from edl_allreduce.errors import ApiRefused, ClusterUnreachable


def pod(name, version):
    return {"metadata": {"name": name, "resourceVersion": str(version)}}


def event(kind, name, version):
    return json.dumps({"type": kind, "object": pod(name, version)}).encode()


def expired():
    return json.dumps({"type": "ERROR", "object": {"code": 410, "reason": "Expired"}}).encode()


class Script:
    """Answers requests in order; when the script is over the watcher is closed."""

    def __init__(self, *answers):
        self.answers = deque(answers)
        self.requests: list[str] = []
        self.seen: list[object] = []
        self.watcher = Watcher(self, "/pods", {"labelSelector": "a=b"}, self.seen.append)

    def run(self):
        self.watcher.run()
        assert not self.answers, "the whole script was used"
        return self.seen

    def _next(self, what):
        self.requests.append(what)
        answer = self.answers.popleft()
        if not self.answers:
            self.watcher.close()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def get(self, path, **query):
        names = self._next("list")
        return {
            "metadata": {"resourceVersion": "10"},
            "items": [pod(name, 1) for name in names],
        }

    def lines(self, path, timeout, **query):
        for line in self._next(f"watch from {query['resourceVersion']}"):
            if isinstance(line, Exception):
                raise line
            yield line


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(watching, "FIRST_DELAY", 0.0)


def names(seen):
    told = []
    for each in seen:
        match each:
            case Listed(objects):
                told.append([o["metadata"]["name"] for o in objects])
            case Changed(found):
                told.append("+" + found["metadata"]["name"])
            case Removed(found):
                told.append("-" + found["metadata"]["name"])
    return told


def test_a_watch_goes_on_where_the_last_one_ended():
    script = Script(["a"], [event("ADDED", "b", 11), event("BOOKMARK", "", 20)], [event("DELETED", "a", 21)])
    # The last watch is delivered as a whole although the watcher was closed meanwhile: only its loop ends.
    script.run()
    assert script.requests == ["list", "watch from 10", "watch from 20"]


def test_events_are_delivered_in_order():
    script = Script(
        ["a"], [event("ADDED", "b", 11), event("MODIFIED", "a", 12), event("DELETED", "b", 13)], []
    )
    assert names(script.run()) == [["a"], "+b", "+a", "-b"]


@pytest.mark.parametrize("too_old", [[expired()], ApiRefused("too old", status=410)])
def test_a_version_that_is_too_old_leads_to_a_new_list(too_old):
    script = Script(["a"], too_old, ["a", "b"], [])
    assert names(script.run()) == [["a"], ["a", "b"]]
    assert script.requests == ["list", "watch from 10", "list", "watch from 10"]


def test_a_cut_watch_goes_on_without_a_list():
    script = Script(["a"], [event("ADDED", "b", 11), ClusterUnreachable("cut")], [])
    script.run()
    assert script.requests == ["list", "watch from 10", "watch from 11"]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_in_trouble_is_asked_again_for_the_same(status):
    trouble = ApiRefused("later", status=status)
    script = Script(trouble, ["a"], trouble, trouble, [])
    script.run()
    assert script.requests == ["list", "list", "watch from 10", "watch from 10", "watch from 10"]


def test_half_a_line_is_not_an_event():
    script = Script([], [event("ADDED", "b", 11)[:20]], [])
    assert names(script.run()) == [[]]


def test_an_event_that_nobody_understands_begins_the_watch_anew(caplog):
    """A thread that dies of it would never hear of the end of a pod again."""
    script = Script(["a"], [b'{"kind": "Status"}'], ["a", "b"], [])
    assert names(script.run()) == [["a"], ["a", "b"]]
    assert script.requests == ["list", "watch from 10", "list", "watch from 10"]
    assert "what it does not understand" in caplog.text
