"""Real Horovod processes that a test can start, kill and freeze by the dozen."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ring_store import RingStore

# Far beyond what anything here takes. Who reaches it hangs, and that is what the tests are looking for;
# the Gloo timeout is longer still, so that nobody is saved by it.
PATIENCE_SECONDS = 20.0
GLOO_TIMEOUT_SECONDS = 60
RING_WORKER = Path(__file__).with_name("ring_worker.py")


def _watched() -> dict[str, str]:
    """What a library that was built for a sanitizer needs (`make sanitize`)."""
    runtime = os.environ.get("RING_LAB_PRELOAD")
    return {"LD_PRELOAD": runtime} if runtime else {}


class Answer:
    def __init__(self, message: dict[str, Any]) -> None:
        self.error: str | None = message.get("error")
        self.value: Any = message.get("ok")
        self.seconds: float = message["seconds"]

    def good(self) -> Any:
        assert self.error is None, self.error
        return self.value


class Worker:
    """One process with Horovod in it. Commands are sent with `tell`; `answer` waits for the next answer."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(PATIENCE_SECONDS)
        self._connection = connection
        self._lines = connection.makefile("rb")
        self.pid: int = self._receive()["pid"]
        self.key = "what the members of the ring know"
        """Without one it lets in whoever connects, as a stock Horovod does."""

    def tell(self, do: str, **arguments: Any) -> None:
        self._connection.sendall(json.dumps({"do": do, **arguments}).encode() + b"\n")

    def answer(self) -> Answer:
        return Answer(self._receive())

    def ask(self, do: str, **arguments: Any) -> Answer:
        self.tell(do, **arguments)
        return self.answer()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        self._lines.close()
        self._connection.close()

    def _receive(self) -> dict[str, Any]:
        try:
            line = self._lines.readline()
        except TimeoutError:
            raise AssertionError(f"worker {self.pid} hangs: no answer for {PATIENCE_SECONDS} s") from None
        if not line:
            raise AssertionError(f"worker {getattr(self, 'pid', '?')} died")
        message: dict[str, Any] = json.loads(line)
        return message


class Absent:
    """A member of the ring that never comes."""

    key = ""

    def tell(self, do: str, **arguments: Any) -> None:
        pass


class Lab:
    """Workers of one kind; `environment` is what their processes get besides ours."""

    def __init__(
        self,
        program: Path = RING_WORKER,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._directory = tempfile.TemporaryDirectory()
        self._path = str(Path(self._directory.name) / "s")
        self._process = subprocess.Popen(
            [sys.executable, str(program), self._path],
            env={**os.environ, **_watched(), **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if os.environ.get("RING_LAB_STDERR") else subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        self.exits: dict[int, int] = {}
        self._exited = threading.Condition()
        threading.Thread(target=self._watch, daemon=True).start()
        self._workers: list[Worker] = []
        self._stores: list[RingStore] = []
        self._generation = 0

    @property
    def generation(self) -> int:
        """Of the ring that was asked for last."""
        return self._generation

    def _watch(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            pid, code = map(int, line.split())
            with self._exited:
                self.exits[pid] = code
                self._exited.notify_all()

    def worker(self) -> Worker:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._path)
        worker = Worker(connection)
        self._workers.append(worker)
        return worker

    def workers(self, count: int) -> list[Worker]:
        return [self.worker() for _ in range(count)]

    def store(self, size: int, **options: Any) -> RingStore:
        store = RingStore(size, **options)
        self._stores.append(store)
        return store

    def tell_init(self, workers: Sequence[Worker | Absent], store: RingStore, **more: str) -> None:
        """Ask all to form a ring, in this order. Does not wait."""
        self._generation += 1
        self._tell("init", workers, store, **more)

    def tell_prepare(self, workers: Sequence[Worker | Absent], store: RingStore) -> None:
        """Ask all to connect the next ring beside what they do; "prepared" says how that ended."""
        self._generation += 1
        self._tell("prepare", workers, store)

    def tell_take(self, workers: Sequence[Worker | Absent], store: RingStore) -> None:
        """Ask all to form the ring that they prepared. Does not wait."""
        self._tell("init", workers, store)

    def _tell(self, what: str, workers: Sequence[Worker | Absent], store: RingStore, **more: str) -> None:
        size = str(len(workers))
        for rank, worker in enumerate(workers):
            env = {
                "HOROVOD_RANK": str(rank),
                "HOROVOD_SIZE": size,
                "HOROVOD_LOCAL_RANK": str(rank),
                "HOROVOD_LOCAL_SIZE": size,
                "HOROVOD_CROSS_RANK": "0",
                "HOROVOD_CROSS_SIZE": "1",
                "HOROVOD_HOSTNAME": "host",
                "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
                "HOROVOD_GLOO_RENDEZVOUS_PORT": str(store.port(rank)),
                "HOROVOD_GLOO_IFACE": "lo",
                "HOROVOD_GLOO_TIMEOUT_SECONDS": str(GLOO_TIMEOUT_SECONDS),
                "HOROVOD_CONTROLLER": "gloo",
                "HOROVOD_CPU_OPERATIONS": "gloo",
                "HOROVOD_EDL_GENERATION": str(self._generation),
                "HOROVOD_EDL_STORE_BATCH": "1",
                "HOROVOD_LOG_LEVEL": "fatal",
            }
            worker.tell(what, env=env | more, key=worker.key)

    def form(self, workers: Sequence[Worker], **more: str) -> list[Answer]:
        """Form a ring of these workers and prove it with a sum."""
        store = self.store(len(workers))
        self.tell_init(workers, store, **more)
        return self.proven(workers)

    def take(self, workers: Sequence[Worker], store: RingStore) -> None:
        """Form the ring that was prepared, without another word to its store, and prove it with a sum."""
        asked = len(store.requests)
        self.tell_take(workers, store)
        self.proven(workers)
        assert len(store.requests) == asked, "the connections were there"

    def proven(self, workers: Sequence[Worker]) -> list[Answer]:
        """All of them are in the ring that they were told to form, and sum."""
        answers = [worker.answer() for worker in workers]
        for rank, answer in enumerate(answers):
            assert answer.good()["rank"] == rank
        for rank, worker in enumerate(workers):
            worker.tell("sum", values=[1.0, float(rank)])
        expected = [float(len(workers)), float(sum(range(len(workers))))]
        for worker in workers:
            assert worker.answer().good() == expected
        return answers

    def leave(self, workers: Sequence[Worker]) -> list[Answer]:
        for worker in workers:
            worker.tell("shutdown")
        answers = [worker.answer() for worker in workers]
        for answer in answers:
            answer.good()
        return answers

    def exit_of(self, worker: Worker) -> int:
        with self._exited:
            assert self._exited.wait_for(lambda: worker.pid in self.exits, PATIENCE_SECONDS)
            return self.exits[worker.pid]

    def crashed(self) -> dict[int, int]:
        """Workers that ended by anything but our SIGKILL."""
        with self._exited:
            return {pid: code for pid, code in self.exits.items() if code != -signal.SIGKILL}

    def reset(self) -> None:
        """Forget workers and stores of a finished test."""
        for worker in self._workers:
            with contextlib.suppress(ProcessLookupError):  # killed by the test, not yet reported
                worker.kill()
            self.exit_of(worker)
            worker.close()
        self._workers.clear()
        for store in self._stores:
            store.close()
        self._stores.clear()
        self.exits.clear()

    def close(self) -> None:
        self.reset()
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._directory.cleanup()


@contextlib.contextmanager
def lent(lab: Lab) -> Iterator[Lab]:
    """The processes for one test; whoever ended otherwise than by our SIGKILL fails it."""
    yield lab
    crashed = lab.crashed()
    lab.reset()
    assert not crashed, f"workers that ended by themselves: {crashed}"
