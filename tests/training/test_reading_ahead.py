"""What a thread makes ahead of training."""

from __future__ import annotations

import threading

import pytest

from edl_allreduce.worker.keras.pipeline import Ahead

pytestmark = pytest.mark.tensorflow


def counted(made: list[int], reached: threading.Semaphore, most: int = 100):
    for number in range(most):
        made.append(number)
        reached.release()
        yield number


def test_one_is_made_at_first_and_more_only_when_some_were_taken():
    made, reached = [], threading.Semaphore(0)
    ahead = Ahead(counted(made, reached), room=4, name="test")
    for taken in range(40):
        assert next(ahead) == taken
        assert len(made) - (taken + 1) <= min(4, 1 + (taken + 1) // 4) + 1, "room, and the one at hand"
    ahead.close()


def test_nothing_more_is_made_before_the_first_is_taken():
    made, reached = [], threading.Semaphore(0)
    ahead = Ahead(counted(made, reached), room=4, name="test")
    reached.acquire()
    assert not reached.acquire(timeout=0.2)
    assert next(ahead) == 0
    assert reached.acquire(timeout=10), "now it goes on"
    ahead.close()


def test_what_went_wrong_is_raised_where_it_belongs_and_stays():
    def items():
        yield 1
        raise ValueError("a bad record")

    ahead = Ahead(items(), room=4, name="test")
    assert next(ahead) == 1
    for _ in range(2):
        with pytest.raises(ValueError, match="a bad record"):
            next(ahead)


def test_all_items_come_in_order_and_then_the_end():
    made, reached = [], threading.Semaphore(0)
    assert list(Ahead(counted(made, reached, 10), room=2, name="test")) == list(range(10))


def test_closing_ends_the_thread_and_whoever_waits_for_an_item():
    made, reached = [], threading.Semaphore(0)
    inner = Ahead(counted(made, reached), room=2, name="inner")
    outer = Ahead(iter(inner), room=2, name="outer")
    assert next(outer) == 0
    outer.close()
    inner.close()
    for thread in threading.enumerate():
        if thread.name in ("inner", "outer"):
            thread.join(10)
            assert not thread.is_alive()
