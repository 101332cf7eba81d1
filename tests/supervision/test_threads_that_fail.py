"""A helper thread that meets a bug ends its worker with a word, instead of leaving it waiting for ever."""

from __future__ import annotations

import queue
import threading

import pytest
from edl_allreduce.worker.control import Control

from edl_allreduce.core.deadlines import Deadlines
from edl_allreduce.core.protocol import Seat
from edl_allreduce.worker.threads import supervised


def test_what_a_thread_raises_is_told_with_its_name():
    told: queue.Queue[tuple[str, Exception]] = queue.Queue()

    def fail() -> None:
        raise KeyError("what")

    supervised("reader", fail, lambda name, error: told.put((name, error)))
    name, error = told.get(timeout=30)
    assert name == "reader" and isinstance(error, KeyError)


def test_a_thread_that_ends_in_order_tells_nothing():
    told: list[object] = []
    done = threading.Event()
    supervised("reader", done.set, lambda name, error: told.append(error))
    assert done.wait(30) and not told


@pytest.mark.parametrize("thread", ["_attend", "_break", "_beat"])
def test_a_worker_ends_when_one_of_its_helpers_does(thread: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: queue.Queue[int] = queue.Queue()
    control = Control(
        "127.0.0.1:1",
        "token",
        Seat("uid", 0, "127.0.0.1"),
        deadlines=Deadlines(1.0),
        master_grace=600,
        end=ended.put,
    )

    def fail() -> None:
        raise RuntimeError("a bug")

    fail.__name__ = thread
    monkeypatch.setattr(control, thread, fail)
    control.start()
    assert ended.get(timeout=30) == 1
    control.close()
