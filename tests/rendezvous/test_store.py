"""The key-value store that Horovod meets on a worker's own loopback."""

from __future__ import annotations

import http.client
import threading

import pytest

from edl_allreduce.core import protocol
from edl_allreduce.worker.ring.store import GONE, NOT_THERE, LoopbackStore


@pytest.fixture
def sent():
    return []


@pytest.fixture
def store(sent):
    return LoopbackStore(sent.append, 30.0)


def request(store, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", store.port, timeout=30)
    connection.request(method, path, body)
    answer = connection.getresponse()
    return answer.status, answer.read()


def in_background(store, path):
    answers = []
    thread = threading.Thread(target=lambda: answers.append(request(store, "GET", path)))
    thread.start()

    def answer():
        thread.join(30)
        return answers[0]

    return answer


def test_it_listens_on_loopback_only(store):
    assert store._server.server_address[0] == "127.0.0.1"


def test_what_a_rank_sets_goes_to_the_master_and_is_there(store, sent):
    store.open(3)
    assert request(store, "PUT", "/global/0", b"address") == (200, b"")
    assert sent == [protocol.KvSet(3, "/global/0", b"address")]
    assert request(store, "GET", "/global/0") == (200, b"address")


def test_a_get_is_answered_when_the_key_arrives(store):
    store.open(3)
    answer = in_background(store, "/global/1")
    store.arrived(3, "/global/1", b"peer")
    assert answer() == (200, b"peer")


def test_a_get_ends_at_once_when_the_generation_is_superseded(store):
    store.open(3)
    answer = in_background(store, "/global/1")
    store.close(3)
    assert answer() == (GONE, b"")


def test_the_next_generation_stays_open_when_the_one_before_is_closed(store):
    store.open(4)
    store.close(3)
    store.arrived(4, "/global/1", b"peer")
    assert request(store, "GET", "/global/1") == (200, b"peer")


def test_a_generation_that_is_opened_twice_keeps_its_keys(store):
    store.arrived(3, "/global/1", b"early")
    store.open(3)
    store.open(3)
    assert request(store, "GET", "/global/1") == (200, b"early")


def test_keys_of_another_generation_are_never_seen(store):
    store.open(3)
    store.arrived(2, "/global/1", b"old")
    store.arrived(4, "/global/1", b"early")
    answer = in_background(store, "/global/1")
    store.arrived(3, "/global/1", b"right")
    assert answer() == (200, b"right")
    store.open(4)
    assert request(store, "GET", "/global/1") == (200, b"early"), "a quicker peer's key was kept for later"


def test_outside_a_generation_nothing_is_stored(store, sent):
    assert request(store, "PUT", "/global/0", b"address")[0] == GONE
    assert sent == []


def test_a_key_that_never_comes_is_not_there_after_the_longest_wait(sent):
    store = LoopbackStore(sent.append, longest_wait=0.05)
    store.open(1)
    assert request(store, "GET", "/global/9")[0] == NOT_THERE


def test_a_part_goes_to_the_master_and_the_whole_comes_back(store, sent):
    store.open(3)
    assert request(store, "PUT", "/global/all-2/1", b"2nd") == (200, b"")
    assert sent == [protocol.KvPart(3, "/global/all-2", 1, 2, b"2nd")]
    answer = in_background(store, "/global/all-2")
    store.arrived(3, "/global/all-2", b"5 3\nfirst2nd")
    assert answer() == (200, b"5 3\nfirst2nd")
