"""A job goes on when its terminal is closed or its reader has gone; in the background it is found again."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import termios
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from edl_allreduce.cluster.registry import LocalJobFiles
from edl_allreduce.testing import faults
from edl_allreduce.testing.faults import Fault

ELASTICDL = (sys.executable, "-m", "edl_allreduce.cli")
HOLD = Fault("compute", "hold", {"step": 5}, repeat=True)


class Terminal:
    """What a person sits before: keys, a screen, and the power switch."""

    def __init__(self, *words: str, term: str = "xterm", environment: dict[str, str] | None = None) -> None:
        self._ours, theirs = pty.openpty()
        self._closing, self._close = os.pipe()
        termios.tcsetwinsize(theirs, (50, 150))
        # Whoever runs the tests in the background ignores SIGINT, and children inherit that.
        command = ["setsid", "--ctty", "env", "--default-signal=INT,HUP", f"TERM={term}", *words]
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
        os.close(theirs)
        self.shown = ""
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            if self._closing in select.select([self._ours, self._closing], [], [])[0]:
                return
            try:
                said = os.read(self._ours, 65536)
            except OSError:  # how a terminal says that nobody writes any more
                said = b""
            with self._news:
                self.shown += said.decode(errors="replace")
                self._news.notify_all()
            if not said:
                return

    def sees(self, text: str) -> None:
        with self._news:
            self._news.wait_for(lambda: text in self.shown or not self._reader.is_alive(), 90)
        assert text in self.shown, f"{text!r} was not shown:\n{self.shown[-4000:]}"

    def press_ctrl_c(self) -> None:
        os.write(self._ours, b"\x03")

    def close(self) -> None:
        """The window is gone: nobody reads, and the kernel tells the session."""
        os.write(self._close, b"x")
        self._reader.join(90)
        os.close(self._ours)

    def ends(self) -> int:
        code = self.process.wait(90)
        self._reader.join(90)
        return code


@pytest.fixture
def terminal():
    started: list[Terminal] = []

    def start(*words: str, **how) -> Terminal:
        started.append(Terminal(*words, **how))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.ends()


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "elasticdl" / "jobs"


def elasticdl(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*ELASTICDL, *words], capture_output=True, text=True, timeout=120)


@pytest.mark.training
def test_a_job_in_the_background_is_attached_to_left_alone_and_stopped(
    state, digits_flags, tmp_path, terminal
):
    flags = {**digits_flags, "job_name": "behind", "num_workers": 1, "num_epochs": 100_000,
             "output": tmp_path / "model"}  # fmt: skip
    words = [f"--{name}={value}" for name, value in flags.items()]
    started = elasticdl("train", "--detach", *words)
    files = LocalJobFiles(state / "behind")
    try:
        assert started.returncode == 0, started.stderr
        for command in ("attach", "events", "stop"):
            assert f"elasticdl {command} --job_name=behind" in started.stdout
        assert "running already" in elasticdl("train", "--detach", *words).stderr

        attached = terminal(*ELASTICDL, "attach", "--job_name=behind")
        attached.sees("ring 1 of 1")
        attached.sees("epoch")
        attached.press_ctrl_c()
        assert attached.ends() == 0, attached.shown[-2000:]
        assert "Detached: behind goes on" in attached.shown and "Traceback" not in attached.shown
        assert files.running() is not None

        dumb = terminal(*ELASTICDL, "top", "--job_name=behind", term="dumb")
        dumb.sees("records/s, ring 1 of 1")

        with subprocess.Popen(
            [*ELASTICDL, "status", "--watch", "--job_name=behind"], stdout=subprocess.PIPE, text=True
        ) as piped:
            assert piped.stdout is not None
            line = piped.stdout.readline()
            piped.stdout.close()  # as head does
            assert "of" in line and "epoch" in line and "loss" in line, line
    finally:
        elasticdl("stop", "--job_name=behind")
    assert files.running() is None
    over = elasticdl("attach", "--job_name=behind")
    assert over.returncode == 0 and "Stopped: asked by the user" in over.stdout
    assert "Throughput" in over.stdout and "0.0 steps/s" not in over.stdout
    assert "training stopped after" in over.stdout and "training is complete" not in over.stdout
    assert f"The result is in {tmp_path / 'model'}" in over.stdout
    printed = (state / "behind" / "stdout.log").read_text()
    assert "progress: step" in printed and "The trained model is in" in printed


@pytest.mark.training
def test_a_closed_terminal_leaves_the_job_running(tmp_path, digits_flags, terminal):
    """SIGHUP comes from the kernel, as it does when a window is closed or a connection breaks."""
    fired, job_dir = tmp_path / "faults", tmp_path / "job"
    flags = {**digits_flags, "job_name": "window", "num_workers": 1, "job_dir": job_dir,
             "output": tmp_path / "model"}  # fmt: skip
    words = [f"--{name}={value}" for name, value in flags.items()]
    window = terminal(
        *ELASTICDL, "train", *words, environment={**os.environ, **faults.environment([HOLD], fired)}
    )
    window.sees("step 5 of")
    window.close()
    until(lambda: "the terminal was closed" in (job_dir / "master.log").read_text())
    faults.release(fired)
    assert window.process.wait(90) == 0
    result = LocalJobFiles(job_dir).result()
    assert result is not None and (result.phase, result.step) == ("Succeeded", result.total_steps)
    log = (job_dir / "master.log").read_text()
    assert f"The trained model is in {tmp_path / 'model'}" in log and "Traceback" not in log


@pytest.mark.training
def test_a_reader_that_leaves_does_not_end_the_job(tmp_path, digits_flags):
    flags = {**digits_flags, "job_name": "read", "num_workers": 1, "job_dir": tmp_path / "job",
             "output": tmp_path / "model", "log_file_path": tmp_path / "copy.log"}  # fmt: skip
    words = [f"--{name}={value}" for name, value in flags.items()]
    with subprocess.Popen(
        [*ELASTICDL, "train", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as job:
        assert job.stdout is not None and job.stderr is not None
        assert "elasticdl dashboard" in job.stdout.readline()
        job.stdout.close()  # as head does
        complaints = job.stderr.read()
    assert (job.returncode, complaints) == (0, "")
    copy = (tmp_path / "copy.log").read_text()
    for log in (copy, (tmp_path / "job" / "master.log").read_text()):
        assert "worker 0 starts" in log and "nobody reads what is printed any more" in log
        assert "Succeeded" in log and f"The trained model is in {tmp_path / 'model'}" in log


def until(happened: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(900):
        if happened():
            return
        pause.wait(0.1)
    raise AssertionError("it did not happen")
