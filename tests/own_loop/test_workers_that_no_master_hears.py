"""SIGTERM for a script whose master may not hear that it leaves. With 0 it would look like a crash."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from typing import NoReturn

import keras
import numpy as np
import pytest
import tensorflow as tf

from edl_allreduce import elastic
from edl_allreduce.contract import EXIT_TERMINATED
from edl_allreduce.core import protocol
from edl_allreduce.core.deadlines import Deadlines
from edl_allreduce.core.protocol import Seat
from edl_allreduce.spec import JobSpec
from edl_allreduce.worker.attendant import Attendant
from edl_allreduce.worker.ring.solo import SoloRing
from edl_allreduce.worker.script import part
from edl_allreduce.worker.script.worker import ScriptWorker

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.parametrize(("hears", "code"), [(True, 0), (False, EXIT_TERMINATED)]),
]


class Quiet:
    """A master that takes a worker and plans nothing with it, or one that does not answer."""

    clean = True

    def __init__(self, *, hears: bool) -> None:
        self._hears = hears
        self._over = threading.Event()

    def send(self, message: protocol.FromWorker) -> None: ...

    def close(self) -> None:
        self._over.set()

    def __iter__(self) -> Iterator[protocol.FromMaster]:
        if self._hears:
            yield protocol.Welcome()
        assert self._over.wait(30)


class ToldToLeave(ScriptWorker):
    """By a signal, as soon as it is ready."""

    def ready(self, message: protocol.Ready) -> None:
        super().ready(message)
        signal.raise_signal(signal.SIGTERM)


@pytest.fixture(autouse=True)
def led(hears: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever joins in this test has this master."""

    def find_worker(spec: JobSpec) -> ScriptWorker:
        seat, stream = Seat("uid", 0, "127.0.0.1"), Quiet(hears=hears)
        control = Attendant(lambda hello: stream, seat, deadlines=Deadlines(), master_grace=600)
        control.start()
        return ToldToLeave(control, SoloRing())

    monkeypatch.setattr(part, "find_worker", find_worker)


class Exited(BaseException):
    pass


def test_while_it_prepares(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def exit_at_once(code: int) -> NoReturn:
        raise Exited(code)

    script = part.Part(part.job_flags())
    with monkeypatch.context() as patch, pytest.raises(Exited) as exited:
        patch.setattr(os, "_exit", exit_at_once)
        script.__enter__()
        signal.raise_signal(signal.SIGTERM)
    script.close(None)
    assert exited.value.args == (code,)


def test_while_a_loop_waits_for_the_others(code: int) -> None:
    """Where the master heard it, the script goes on to its own end."""
    with (
        pytest.raises(SystemExit, match=str(code)) if code else nullcontext(),
        elastic.join(records=8, batch_size=4, epochs=1, state=[tf.Variable(0.0)]) as job,
    ):
        for _ in job.steps(rehearse=False):
            pytest.fail("nobody planned a ring")
    assert not job.finished


def test_while_fit_waits_for_the_others(code: int) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(SystemExit) as exited:
        elastic.fit(model, np.zeros((8, 2), "float32"), np.zeros(8, "float32"), batch_size=4, verbose=0)
    assert exited.value.code == code
