"""Events are data: each kind survives JSON, and its sentence does not change on the way."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import get_args

import pytest

from edl_allreduce.core import event_data, events
from edl_allreduce.core.protocol import NoteKind

VALUES = {
    "int": 3,
    "float": 0.25,
    "str": "why",
    "bool": True,
    "tuple[int, ...]": (3, 5),
    "Mapping[str, float]": {"loss": 0.5, "worst": math.inf},
    "NoteKind": NoteKind.EDITED,
}


def made(kind: type) -> events.Event:
    return kind(**{field.name: VALUES[str(field.type)] for field in dataclasses.fields(kind)})


@pytest.mark.parametrize("kind", get_args(events.Event))
def test_every_kind_survives_json(kind):
    event = made(kind)
    back = event_data.from_data(json.loads(json.dumps(event_data.to_data(event), allow_nan=False)))
    assert back == event
    assert back.text() == event.text() and back.kind == event.kind


@pytest.mark.parametrize("kind", get_args(events.Event))
def test_an_event_of_a_worker_names_it(kind):
    event = made(kind)
    names = {field.name for field in dataclasses.fields(kind)}
    assert (3 in events.workers_of(event)) == bool(names & {"worker_id", "workers"})


def test_what_another_version_wrote_is_passed_over():
    assert event_data.from_data({"type": "WorkerBlessed", "worker_id": 1}) is None
    assert event_data.from_data({"type": "WorkerConnected", "worker_id": 1}) is None, "a fact is missing"
    assert event_data.from_data({"type": "Noted", "kind": "prophecy", "words": "it will rain"}) is None
    assert event_data.from_data({}) is None
    known = event_data.from_data({"type": "WorkerReady", "worker_id": 1, "since_version_9": True})
    assert known == events.WorkerReady(1)
