"""A helper thread that meets a bug ends its worker with a word, instead of leaving it waiting for ever."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import pytest

from edl_allreduce.core import protocol
from edl_allreduce.core.deadlines import Deadlines
from edl_allreduce.core.protocol import Seat
from edl_allreduce.worker.attendant import Attendant
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


class Silent:
    """A stream over which a master says nothing."""

    clean = True

    def __init__(self) -> None:
        self.said: list[protocol.FromWorker] = []
        self._over = threading.Event()

    def send(self, message: protocol.FromWorker) -> None:
        self.said.append(message)

    def close(self) -> None:
        self._over.set()

    def __iter__(self) -> Iterator[protocol.FromMaster]:
        self._over.wait(30)
        return iter(())


@pytest.mark.parametrize(
    ("method", "thread"), [("_handle", "attend"), ("_beat", "attend"), ("_listen", "listen")]
)
def test_a_worker_ends_when_one_of_its_helpers_does(
    method: str, thread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: queue.Queue[int] = queue.Queue()
    stream = Silent()
    attendant = Attendant(
        lambda hello: stream,
        Seat("uid", 0, "127.0.0.1"),
        deadlines=Deadlines(0.1),
        master_grace=600,
        end=ended.put,
    )

    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    attendant.start()
    monkeypatch.setattr(attendant, method, fail)
    attendant.send(protocol.Note(protocol.NoteKind.NOTICE, "something happens"))
    if method == "_listen":
        attendant._connect(2)
    assert ended.get(timeout=30) == 1
    failures = [message for message in stream.said if isinstance(message, protocol.Failed)]
    assert all(f"its thread {thread!r} ended with RuntimeError: a bug" == f.summary for f in failures)
