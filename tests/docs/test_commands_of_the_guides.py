"""The guides' commands, typed in the order of the page, as a person would."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edl_allreduce import clock
from edl_allreduce.api import attach
from edl_allreduce.core.status import JobStatus
from tests.docs.blocks import ROOT, blocks

pytestmark = [pytest.mark.training, pytest.mark.timeout(600)]  # a page is many commands

LONG = 150.0


class Terminal:
    """A shell in an empty directory and with an empty home."""

    def __init__(self, directory: Path) -> None:
        self.here = directory / "work"
        self.here.mkdir()
        (directory / "home").mkdir()
        self.jobs = directory / "home" / "state" / "elasticdl" / "jobs"
        beside = Path(sys.executable).parent
        self.environment = {
            **os.environ,
            "HOME": str(directory / "home"),
            "XDG_STATE_HOME": str(directory / "home" / "state"),
            "PATH": f"{beside}:{os.environ['PATH']}",
        }

    def type(self, text: str) -> str:
        """The output; a command that fails is a failure."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.here,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LONG,
            check=False,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout + done.stderr

    def wait_until(self, what: str, name: str, holds: Callable[[JobStatus], bool]) -> None:
        """A person looks at the table before the next command."""
        job = attach(job_dir=str(self.jobs / name))
        for _ in clock.polls(every=0.3, within=LONG):
            if holds(job.status()):
                return
        raise AssertionError(f"{what}: {job.status()}")


@pytest.fixture
def terminal(tmp_path):
    shell = Terminal(tmp_path)
    yield shell
    subprocess.run(
        ["elasticdl", "stop", "--job_name=digits"], env=shell.environment, capture_output=True, check=False
    )


def typed(page: str) -> list[str]:
    return [block.text for block in blocks(ROOT / "docs" / page) if not block.marked]


def test_a_first_hour_on_a_laptop(terminal):
    (terminal.here / "model_zoo").symlink_to(ROOT / "model_zoo")
    prepare, train, look, disturb, ask, end, check = typed("guides/laptop.md")
    assert "Able to train" in terminal.type(prepare)
    terminal.type(train)
    terminal.wait_until("it trains", "digits", lambda job: job.step > 0)
    assert "worker" in terminal.type(look)
    terminal.type(disturb)
    terminal.wait_until("a loss is counted", "digits", lambda job: job.tally.losses == 1)
    terminal.wait_until(
        "all three train", "digits", lambda job: [w.rank >= 0 for w in job.workers] == [True] * 3
    )
    said = terminal.type(ask)
    assert "SIGKILL" in said
    assert "from 2 to 3 workers" in said
    said = terminal.type(end)
    assert "clean" in said
    assert "model.keras" in said
    assert "accuracy" in terminal.type(check)
    assert (terminal.here / "model" / "model.keras").exists(), "what `jobs rm` leaves alone"


def test_an_own_model_from_an_empty_directory_to_a_keras_file(terminal):
    data, model, train, use = typed("guides/own-model.md")
    assert "469" in terminal.type(data)
    terminal.type(model)
    said = terminal.type(train)
    assert "clean" in said
    accuracy = float(said.split("'accuracy': ")[-1].split(",")[0].rstrip("}"))
    assert accuracy > 0.8, "569 records that differ clearly"
    assert "Dense" in terminal.type(use)
