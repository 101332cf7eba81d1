"""The driver blames its own faults for what they do, and for nothing else; a campaign forgets no failure."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chaos import __main__ as command
from chaos import campaign, memory, processes
from chaos.campaign import CRASHED, Campaign
from chaos.driver import PAUSE, Done, Driver
from chaos.faults import Fault, Kind, Style, Who
from chaos.one import RESULT
from chaos.schedule import case_of
from edl_allreduce import clock

NAME = "worker-0-aaa.jsonl"


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    case = case_of(1, style=Style.BY_HAND)
    return Driver(case, tmp_path / "case", lambda line: None, 60.0, "chaos-test-")


def ended(words: str) -> subprocess.Popen[bytes]:
    """A process that is over, and whose code nobody asked for yet."""
    process = subprocess.Popen([sys.executable, "-c", words])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    return process


# ------------------------------------------------------------------------------------------ ends of processes


def manned(driver: Driver, monkeypatch, words: str) -> list[str]:
    """What is held against the job after a worker ended so."""
    workers = driver.job.workers

    def start_worker() -> None:
        workers[10 + len(workers)] = subprocess.Popen(["true"])

    monkeypatch.setattr(driver.job, "start_worker", start_worker)
    workers[0] = ended(words)
    if "denied" in words:
        driver._denied.add(workers[0].pid)
    driver._man()
    assert 0 not in workers and len(workers) == driver.case.shape.workers, "it was replaced"
    for worker in workers.values():
        worker.wait()
    return driver._crashes


@pytest.mark.parametrize("words", ["", "exit(4)", "exit(143)", "exit(1)  # denied memory"])
def test_a_worker_by_hand_may_end_as_its_faults_explain(driver, monkeypatch, words):
    assert manned(driver, monkeypatch, words) == []


def test_a_worker_by_hand_that_a_signal_ended_was_met_by_a_fault(driver, monkeypatch):
    assert manned(driver, monkeypatch, "import os; os.kill(os.getpid(), 9)") == []


@pytest.mark.parametrize("words, code", [("exit(1)", 1), ("import os; os.abort()", -signal.SIGABRT)])
def test_a_worker_by_hand_that_crashes_is_a_problem(driver, monkeypatch, words, code):
    assert manned(driver, monkeypatch, words) == [f"worker 0 ended by itself with {code}"]


@pytest.mark.parametrize("full", [True, False])
def test_a_worker_by_hand_may_end_where_it_cannot_write(driver, monkeypatch, full):
    fault = Fault(0.0, Kind.FULL_DISK, Who.MACHINE, seconds=0.5)
    driver.done.append(Done(clock.now(), fault, "50000000" if full else ""))
    assert manned(driver, monkeypatch, "exit(3)") == ([] if full else ["worker 0 ended by itself with 3"])


def test_a_master_that_failed_just_before_it_was_killed_is_not_started_again(driver):
    driver.job.master = ended("exit(3)")
    assert driver._do(Fault(0.0, Kind.KILL, Who.MASTER)) == ""
    assert driver._code == 3 and driver._master_back is None


def test_a_master_that_was_killed_is_started_again(driver):
    driver.job.master = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    assert driver._do(Fault(0.0, Kind.KILL, Who.MASTER))
    assert driver._code is None and driver._master_back is not None


# ----------------------------------------------------------------------------------------- standing still


def test_everything_stands_still_while_others_need_the_machine(driver, monkeypatch):
    pause = driver.job.directory.parent / PAUSE
    words = "import time; time.sleep(600)"
    driver.job.master = subprocess.Popen([sys.executable, "-c", words])
    pid = driver.job.master.pid
    monkeypatch.setattr(driver, "_left", lambda: [pid])
    seen: list[str] = []

    def say(line: str) -> None:
        """Called when it stands, and when it goes on."""
        os.waitid(os.P_PID, pid, os.WSTOPPED if not seen else os.WCONTINUED)
        seen.append(processes.state(pid))
        pause.unlink(missing_ok=True)

    monkeypatch.setattr(driver, "_say", say)
    try:
        assert driver._stand_still() == "" and driver.done == [], "nobody asked for it"
        pause.touch()
        driver._progress = 5, clock.now() + 60  # all is well after the last fault
        enough = driver._enough
        assert driver._stand_still() == ""
        assert seen[0] == "T" and seen[1] != "T"
        (nap,) = driver.done
        assert str(nap.fault).startswith("freeze machine") and driver._enough > enough
    finally:
        driver.job.master.kill()
        driver.job.master.wait()
        pause.unlink(missing_ok=True)


# ------------------------------------------------------------------------------------------- who was silenced


def test_a_worker_that_is_killed_is_known_by_its_diary_and_its_last_update(driver):
    driver.job.audit.mkdir(parents=True)
    path = driver.job.audit / NAME
    begin = {"begin": {"generation": 1, "step": 0, "size": 1, "run": 0}}
    path.write_text(json.dumps(begin) + "\n")
    words = f"file = open({str(path)!r}, 'a'); print('open', flush=True); import time; time.sleep(600)"
    worker = subprocess.Popen([sys.executable, "-c", words], stdout=subprocess.PIPE)
    assert worker.stdout is not None and worker.stdout.readline() == b"open\n"
    driver._look()
    assert driver.watch.harmed == {}
    driver._signals(Fault(0.0, Kind.KILL, Who.ONE), [worker.pid])
    worker.wait()
    worker.stdout.close()
    with path.open("a") as file:  # what it wrote before and nobody had read yet
        file.write(json.dumps({"applied": {"generation": 1, "step": 0}}) + "\n")
    driver._look()
    assert driver.watch.harmed == {(NAME, (0, 1)): 1}


# ------------------------------------------------------------------------------------------- control groups


@pytest.fixture
def groups(tmp_path: Path, monkeypatch) -> Path:
    """Control groups, as far as directories are: one with a file in it cannot be removed, as a busy one."""
    root = tmp_path / "groups"
    root.mkdir()
    (root / "cgroup.procs").touch()
    monkeypatch.setattr(memory, "ROOTS", ((root, "memory.max"),))
    return root


def test_a_control_group_that_is_busy_is_removed_at_the_end_of_the_case(driver, groups):
    process = ended("")
    driver._no_memory(Fault(0.0, Kind.NO_MEMORY, Who.ONE, pick=2), process.pid)
    process.wait()
    (group,) = groups.glob("chaos-test-*")
    ((_, undo),) = driver._undo
    undo()
    assert group.exists(), "it is busy"
    for path in group.iterdir():
        path.unlink()
    driver._remove_groups()
    assert not group.exists()


# ------------------------------------------------------------------------------------------------ campaigns


@pytest.fixture
def runs(monkeypatch, groups) -> list[list[str] | None]:
    """What comes of the next cases: their problems, or None for a driver that fails. No case is run."""
    coming: list[list[str] | None] = []

    def run(words: list[str], **more: object) -> None:
        place, prefix = Path(words[-3]), words[-1]
        (groups / f"{prefix}0").mkdir()
        (groups / "chaos-of-another-0").mkdir(exist_ok=True)
        problems = coming.pop(0)
        if problems is not None:
            (place / RESULT).write_text(json.dumps({**campaign._nothing(""), "problems": problems}))

    monkeypatch.setattr(campaign.subprocess, "run", run)
    monkeypatch.setattr(command.shutil, "which", lambda tool: tool)
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)
    return coming


def call(directory: Path, *words: str) -> int:
    return command.main(["--jobs=1", "--shrink=0", f"--directory={directory}", *words])


def test_an_attempt_leaves_no_control_group_of_its_own(runs, groups, tmp_path):
    runs.append([])
    Campaign(tmp_path / "c").attempt(case_of(1), "one")
    assert [path.name for path in groups.glob("chaos-*")] == ["chaos-of-another-0"]


def test_a_failure_is_told_by_every_later_command(runs, tmp_path, capsys):
    runs += [["a step is lost"], []]
    assert call(tmp_path / "c") == 1
    assert call(tmp_path / "c") == 1, "seed 2 passes, seed 1 failed"
    assert "failed now: none, at all: [1]" in capsys.readouterr().out and not runs


def test_a_case_whose_driver_failed_is_run_again(runs, tmp_path):
    runs += [None, []]
    assert call(tmp_path / "c") == 1
    (known,) = Campaign(tmp_path / "c").known().values()
    assert known["problems"][0].startswith(CRASHED)
    assert call(tmp_path / "c") == 0
    (known,) = Campaign(tmp_path / "c").known().values()
    assert known["seed"] == 1 and known["problems"] == []


def test_the_same_seed_in_another_style_or_with_more_faults_is_another_case(runs, tmp_path):
    runs += [[], [], []]
    for words in (["--style=local"], ["--style=by hand"], ["--faults=3"]):
        assert call(tmp_path / "c", *words) == 0
    known = Campaign(tmp_path / "c").known()
    assert not runs and len(known) == 3 and {result["seed"] for result in known.values()} == {1}
