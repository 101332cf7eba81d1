"""The connection between a worker and its master breaks, and nothing else does: nothing may come of it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from edl_allreduce import clock
from edl_allreduce.cluster.registry import LocalJobFiles
from edl_allreduce.testing.faults import Fault
from edl_allreduce.testing.jobs import RunningJob
from tests.connections.wire import Wire

pytestmark = [pytest.mark.training, pytest.mark.timeout(300)]

MASTER = ("-m", "edl_allreduce.master.main")
WORKERS = 3
HELD_AT = 20
EPOCHS = 4


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def wire(port: int) -> Iterator[Wire]:
    made = Wire(port)
    yield made
    made.close()


@pytest.fixture
def start(
    launch: Callable[..., RunningJob], port: int, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., RunningJob]:
    """A master by hand whose workers are held at a step until the test lets them go on."""
    monkeypatch.setenv("EDL_JOB_TOKEN", "a token of 32 characters, by hand")

    def master(**flags: object) -> RunningJob:
        return launch(
            Fault("compute", "hold", {"step": HELD_AT}, repeat=True),
            program=MASTER,
            port=port,
            num_workers=0,
            min_workers=WORKERS,
            num_epochs=EPOCHS,
            **{"failure_detection_seconds": 5, "cool_down_seconds": 1, **flags},
        )

    return master


def start_workers(job: RunningJob, port: int) -> list[subprocess.Popen[bytes]]:
    logs = job.job_dir / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    started = []
    for number in range(WORKERS):
        command = ["-m", "edl_allreduce.worker.main", f"--worker_id={number}"]
        with (logs / f"worker-{number}.log").open("wb") as log:
            started.append(
                subprocess.Popen(
                    [sys.executable, *command, f"--master_addr=127.0.0.1:{port}"],
                    stdout=log,
                    stderr=log,
                    env=job.environment,
                    start_new_session=True,
                )
            )
    return started


def hellos(job: RunningJob, more_than: int) -> None:
    """Until so many connections were made."""
    job._until(
        lambda: sum(e.kind == "hello" for e in job.events()) > more_than or None,
        f"more than {more_than} connections",
        60,
    )


def ends_as_if_nothing_had_happened(job: RunningJob, workers: list[subprocess.Popen[bytes]]) -> None:
    job.release()
    assert job.wait() == 0, job.story()
    assert [worker.wait(30) for worker in workers] == [0] * WORKERS, job.story()
    verdict = job.audit()
    assert verdict.clean and verdict.epochs == EPOCHS, job.story()
    assert verdict.generations == 1, f"the ring was never disturbed\n{job.story()}"
    kinds = {event.kind for event in job.events()}
    assert not kinds & {"evict", "abort", "exit"}, job.story()


def test_workers_that_are_back_before_the_master_noticed_are_the_same_workers(start, wire):
    """Their side is reset; the master's stays open, and is closed when they are long back."""
    job = start()
    workers = start_workers(job, wire.port)
    job.wait_fired(WORKERS)
    old = list(wire.calls)
    assert wire.cut(master=False) >= WORKERS
    hellos(job, more_than=2 * WORKERS - 1)
    for call in old:
        call.master.close()
    ends_as_if_nothing_had_happened(job, workers)


def test_a_master_that_loses_all_connections_for_a_while_gives_nobody_up(start, wire):
    job = start()
    workers = start_workers(job, wire.port)
    job.wait_fired(WORKERS)
    wire.refusing = True
    assert wire.cut() >= WORKERS
    clock.sleep(6.0)  # longer than a silent worker is waited for
    wire.refusing = False
    hellos(job, more_than=2 * WORKERS - 1)
    ends_as_if_nothing_had_happened(job, workers)


def test_a_master_that_hears_nobody_doubts_itself_first(start, wire):
    """Packets vanish, and no connection is closed."""
    job = start()
    workers = start_workers(job, wire.port)
    job.wait_fired(WORKERS)
    wire.open.clear()
    clock.sleep(8.0)
    wire.open.set()
    ends_as_if_nothing_had_happened(job, workers)


def test_a_master_that_is_killed_and_started_again_finds_its_ring(launch, port, tmp_path, monkeypatch):
    """The same command, typed again; nobody gave it a token."""
    monkeypatch.delenv("EDL_JOB_TOKEN", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    held = Fault("compute", "hold", {"step": HELD_AT}, repeat=True)

    def master() -> RunningJob:
        return launch(
            held,
            job_dir=tmp_path / "state" / "elasticdl" / "jobs" / "job",
            program=MASTER,
            port=port,
            num_workers=0,
            min_workers=WORKERS,
            num_epochs=EPOCHS,
            failure_detection_seconds=3,
            cool_down_seconds=1,
        )

    first = master()
    workers = start_workers(first, port)
    first.wait_fired(WORKERS)
    first.process.kill()
    first.process.wait()
    second = master()
    second.wait_for("hello", again=True)
    ends_as_if_nothing_had_happened(second, workers)
    told = LocalJobFiles(second.job_dir).events()
    assert [event.serial for event in told] == list(range(1, len(told) + 1)), "one history of two masters"
    assert len(told) > len(second.events()) > 0


def test_a_job_that_is_started_again_while_its_old_workers_train_lets_them_leave_first(
    launch, cold, tmp_path
):
    """Two rings in one directory would each write checkpoints. Old workers are known by their commands."""
    flags = {
        "program": cold,
        "num_workers": 2,
        "num_epochs": 100,
        "failure_detection_seconds": 2,
        "checkpoint_dir": tmp_path / "kept",
    }
    first = launch(Fault("compute", "hold", {"step": 400, "rank": 0}), **flags)
    first.wait_for("plan")
    pids = [first.pid(number) for number in (0, 1)]
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    first.release()
    second = launch(**flags)
    assert second.wait() == 0, second.story()
    first.until_gone(pids)
    assert "workers of an earlier master of this job still run" in second.stdout()
    verdict = second.audit()
    assert verdict.clean and verdict.epochs == 100, f"{verdict}\n{second.story()}"
