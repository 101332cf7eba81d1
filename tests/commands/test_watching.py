"""top, status --watch, logs --follow and events --follow: beside a live job, on a terminal and in a pipe."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator

import pytest

from edl_allreduce.cluster.registry import LocalJobFiles
from edl_allreduce.testing.faults import Fault

ELASTICDL = (sys.executable, "-m", "edl_allreduce.cli")


class Watching:
    """A command that runs on, and all that it showed so far."""

    def __init__(self, *words: str, terminal: bool = False) -> None:
        self._ours, theirs = pty.openpty() if terminal else os.pipe()
        if terminal:
            termios.tcsetwinsize(theirs, (50, 150))
        # Whoever runs the tests in the background of a shell ignores SIGINT, and children inherit that.
        command = ["env", "--default-signal=INT", "TERM=xterm", *ELASTICDL, *words]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs)
        os.close(theirs)
        self.shown = ""
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                said = os.read(self._ours, 65536)
            except OSError:  # how a terminal says that nobody writes any more
                said = b""
            with self._news:
                self.shown += said.decode(errors="replace")
                self._news.notify_all()
            if not said:
                os.close(self._ours)
                return

    def sees(self, text: str) -> None:
        with self._news:
            found = self._news.wait_for(lambda: text in self.shown or not self._reader.is_alive(), 60)
        assert found and text in self.shown, f"{text!r} was not shown:\n{self.shown[-4000:]}"

    def ends(self) -> int:
        code = self.process.wait(60)
        self._reader.join(60)
        return code


@pytest.fixture
def watching() -> Iterator[Callable[..., Watching]]:
    started: list[Watching] = []

    def start(*words: str, terminal: bool = False) -> Watching:
        started.append(Watching(*words, terminal=terminal))
        return started[-1]

    yield start
    for command in started:
        command.process.kill()
        command.ends()


@pytest.mark.training
def test_who_watches_sees_a_worker_killed_replaced_and_the_end(launch, watching, digits_data):
    job = launch(
        Fault("compute", "hold", {"step": 12}, repeat=True),
        num_workers=2, num_epochs=400, validation_data=digits_data, evaluation_steps=10,
    )  # fmt: skip
    job.wait_fired(2)
    this = f"--job_dir={job.job_dir}"

    top = watching("top", this, terminal=True)
    status = watching("status", this, "--watch", terminal=True)
    numbers = watching("status", this, "--watch", "--output=json")
    everybody = watching("logs", this, "--follow")
    master = watching("logs", this, "--follow", "master")
    events = watching("events", this, "--follow")
    for table in (top, status):
        table.sees("ring 2 of 2")
        table.sees("Evaluation metrics[step=10]")
    numbers.sees('"phase":"Training"')
    everybody.sees("[worker 1]")
    master.sees("plan: generation 1")
    events.sees("generation 1: workers 0, 1")

    _a_number_that_is_taken_is_refused(job.job_dir)

    job.signal(1, signal.SIGKILL)
    for everything in (top, events, master):
        everything.sees("worker 1 was ended by SIGKILL")
    job.release()
    events.sees("generation 3: workers 0, 2")
    everybody.sees("[worker 2]")
    numbers.sees('"generation":3')

    status.process.send_signal(signal.SIGINT)
    assert status.ends() == 130 and "Traceback" not in status.shown
    job.process.send_signal(signal.SIGINT)
    assert job.wait() == 130, job.story()
    for command in (top, numbers, everybody, master, events):
        assert command.ends() == 0, command.shown[-2000:]
        assert "Traceback" not in command.shown
    assert "Stopped" in top.shown and f"The result is in {job.output}" in top.shown
    assert "Stopped" in events.shown and "Stopped" in master.shown
    assert json.loads(numbers.shown.splitlines()[-1])["phase"] == "Stopped", "the last look is after the end"


def _a_number_that_is_taken_is_refused(job_dir) -> None:
    address = LocalJobFiles(job_dir).running()
    second = subprocess.run(
        [sys.executable, "-m", "edl_allreduce.worker.main", "--worker_id=1", f"--job_dir={job_dir}",
         f"--master_addr={address.address}"], capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert second.returncode == 2, second.stdout
    assert "has a worker 1 already" in second.stderr and "--worker_id=2" in second.stderr
