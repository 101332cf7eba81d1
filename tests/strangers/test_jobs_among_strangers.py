"""Whole jobs on a machine that others use: every port of theirs is found and spoken to while they train."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from edl_allreduce import clock
from edl_allreduce.testing.faults import Fault
from edl_allreduce.testing.jobs import RunningJob
from tests.conftest import EPOCHS, GLOBAL_BATCH

pytestmark = pytest.mark.training

NOBODY = 65534
CHALLENGE = 16
"""Bytes that a ring that forms says to everybody who connects: chance, and nothing else."""
MASTER = ("-m", "edl_allreduce.master.main")
ByHand = Callable[..., tuple[RunningJob, list[subprocess.Popen[bytes]]]]
TOKEN = "a token that is long enough"


def listening(pids: list[int]) -> dict[int, list[tuple[str, int]]]:
    """Where these processes listen."""
    found: dict[int, list[tuple[str, int]]] = {}
    for pid in pids:
        try:
            connections = psutil.Process(pid).net_connections(kind="inet")
        except psutil.Error:  # it ended a moment ago
            continue
        found[pid] = [(c.laddr.ip, c.laddr.port) for c in connections if c.status == psutil.CONN_LISTEN]
    return found


def family(job: RunningJob) -> list[int]:
    return [job.process.pid, *(child.pid for child in psutil.Process(job.process.pid).children())]


class Intruder:
    """Speaks to all ports of a job until it is told to end; another user where this one may become one."""

    def __init__(self, job: RunningJob, pids: list[int] | None = None) -> None:
        """`pids`: of all its processes, where they are not children of the master."""
        user = [str(NOBODY)] if os.geteuid() == 0 else []
        self._job = job
        self._pids = pids
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("intruder.py")), *user],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._point_at_ports, daemon=True)
        self._thread.start()

    def _point_at_ports(self) -> None:
        assert self._process.stdin is not None
        while not self._enough.wait(0.01) and self._job.process.poll() is None:
            for places in listening(self._pids or family(self._job)).values():
                for _, port in places:
                    print(port, file=self._process.stdin, flush=True)

    def leave(self) -> dict[str, int]:
        self._enough.set()
        self._thread.join(60)
        done: dict[str, int] = json.loads(self._process.communicate(timeout=120)[0])
        return done


def test_another_user_neither_learns_nor_changes_anything(
    launch: Callable[..., RunningJob], cold: Sequence[str], nothing_was_lost: Callable[[RunningJob], None]
) -> None:
    """Rings form meanwhile: at the beginning, and without the one that is killed."""
    job = launch(
        Fault("compute", "hold", {"step": 30}, repeat=True),
        Fault("reduce", "kill", {"rank": 1, "step": 12}),
        program=cold,
        num_workers=3,
        minibatch_size=GLOBAL_BATCH // 3,
        num_epochs=EPOCHS,
        dashboard_port="off",  # it has guards and strangers of its own: tests/page
    )
    job.wait_for("launch", "worker 2", again=True)
    intruder = Intruder(job)
    job.wait_fired(2)
    master, *workers = family(job)
    places = listening([master, *workers])
    assert places.pop(master) == [], "a master whose workers are here needs no port"
    found = [[address for address, _ in ports] for ports in places.values()]
    assert all(addresses in ([], ["127.0.0.1"]) for addresses in found), "the store, and nothing else"
    started = [pid for pid, ports in places.items() if ports]
    assert len(started) >= 2, "of a newcomer it may not be there yet"
    before = {pid: psutil.Process(pid).num_threads() for pid in started}
    (socket_file,) = job.job_dir.glob("*.sock")
    for path in (job.job_dir / "job.json", socket_file):
        assert path.stat().st_mode & 0o077 == 0
    assert job.job_dir.stat().st_mode & 0o077 == 0
    done = intruder.leave()
    assert done["connected"] > 50 and done["ports"] >= 3, done
    assert done["longest"] <= CHALLENGE, "nobody told it anything"
    for pid, threads in before.items():
        assert psutil.Process(pid).num_threads() <= threads + 10
    job.release()
    nothing_was_lost(job)


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def by_hand(
    launch: Callable[..., RunningJob], port: int, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ByHand]:
    """A master that starts nobody, and two workers that were started beside it."""
    monkeypatch.setenv("EDL_JOB_TOKEN", TOKEN)
    workers: list[subprocess.Popen[bytes]] = []

    def start(*faults: Fault, **flags: object) -> tuple[RunningJob, list[subprocess.Popen[bytes]]]:
        settings = {"num_workers": 0, "min_workers": 2, "cool_down_seconds": 1, **flags}
        job = launch(*faults, program=MASTER, port=port, **settings)
        logs = job.job_dir / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        for number in range(0 if workers else 2):
            command = ["-m", "edl_allreduce.worker.main", f"--worker_id={number}"]
            with (logs / f"worker-{number}.log").open("wb") as log:
                workers.append(
                    subprocess.Popen(
                        [sys.executable, *command, f"--master_addr=127.0.0.1:{port}"],
                        stdout=log, stderr=log, env=job.environment, start_new_session=True,
                    )
                )  # fmt: skip
        return job, workers

    yield start
    for worker in workers:
        worker.kill()
        worker.wait()


def cost(pids: list[int]) -> dict[int, tuple[int, int, int]]:
    """Memory, threads and descriptors of each."""
    seen = [psutil.Process(pid) for pid in pids]
    return {p.pid: (p.memory_info().rss, p.num_threads(), p.num_fds()) for p in seen}


def test_every_port_of_a_job_by_hand_is_closed_to_strangers(
    by_hand: ByHand,
    port: int,
    nothing_was_lost: Callable[[RunningJob], None],
) -> None:
    """While its ring forms, and while it stands."""
    job, workers = by_hand(
        Fault("compute", "hold", {"step": 10}, repeat=True),
        minibatch_size=GLOBAL_BATCH // 2,
        num_epochs=EPOCHS,
        bind="0.0.0.0",
        dashboard_port="off",  # it has guards and strangers of its own: tests/page
    )
    pids = [job.process.pid, *(worker.pid for worker in workers)]
    intruder = Intruder(job, pids)
    job.wait_fired(2)
    done = intruder.leave()
    assert done["connected"] > 50 and done["ports"] >= 3, done
    assert done["longest"] <= CHALLENGE, "nobody told it anything"
    places = listening(pids)
    assert [at for at, _ in places[job.process.pid]] in (["0.0.0.0"], ["::"]), "where it was told to"
    for worker in workers:
        assert [at for at, _ in places[worker.pid]] == ["127.0.0.1"], "the store, and nothing else"
    ports = sorted({number for found in places.values() for _, number in found})
    assert port in ports and len(ports) == 3
    before = cost(pids)
    user = NOBODY if os.geteuid() == 0 else 0
    siege = [sys.executable, str(Path(__file__).with_name("siege.py")), str(user), *map(str, ports)]
    said = subprocess.run(siege, capture_output=True, text=True, timeout=120)
    assert said.returncode == 0, said.stderr
    told: dict[str, dict[str, int]] = json.loads(said.stdout)
    master = told.pop(str(port))
    assert master["UNAUTHENTICATED"] > 50 and master["crowd"] > 100, master
    answers = {"UNAUTHENTICATED", "UNAVAILABLE", "UNIMPLEMENTED"}
    learnt = {"certificates", "crowd", "longest", "refused", "hung up"}
    assert master.keys() <= answers | learnt and master["longest"] <= CHALLENGE, master
    for store in told.values():
        assert store["crowd"] > 100 and store.keys() <= {"crowd", "longest", "refused", "hung up"}, store
        assert store.get("longest", 0) == 0
    for pid, (memory, threads, descriptors) in before.items():
        for _ in clock.polls(0.1, within=60):
            more = cost([pid])[pid]
            if more[2] <= descriptors + 4:
                break
        assert more[0] < memory + 32 * 1024 * 1024 and more[1] <= threads + 10, (before[pid], more)
        assert more[2] <= descriptors + 4, "all of the crowd was hung up"
    job.release()
    nothing_was_lost(job)
    assert [worker.wait(60) for worker in workers] == [0, 0]


def test_who_takes_the_port_of_a_dead_master_does_not_get_the_token(by_hand: ByHand, port: int) -> None:
    job, workers = by_hand(Fault("compute", "hold", {"step": 10}, repeat=True))
    job.wait_fired(2)
    job.process.send_signal(signal.SIGKILL)
    job.process.wait()
    heard = []
    with socket.create_server(("127.0.0.1", port)) as thief:
        thief.settimeout(60)
        while len(heard) < 3:
            connection, _ = thief.accept()
            with connection:
                connection.settimeout(60)
                heard.append(connection.recv(10_000))
    assert all(words for words in heard), "the workers came to it"
    assert not any(b"Bearer" in words or TOKEN.encode() in words for words in heard)
    again, _ = by_hand()
    again.wait_for("hello", "worker 0", again=True)
    again.wait_for("hello", "worker 1", again=True)
    job.release()
    assert again.wait(200) == 0, again.story()
    assert again.audit().clean
    assert [worker.wait(60) for worker in workers] == [0, 0]
