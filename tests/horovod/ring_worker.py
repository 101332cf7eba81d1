"""The process behind ring_lab: imports TensorFlow and Horovod once, then forks a worker per connection.

Forking is right here only because nothing of TensorFlow has run before the fork; it makes a worker ready in
milliseconds instead of seconds, so that a test can afford to kill many.

A worker reads commands (one JSON object per line) and answers each with one line. `abort` and
`prepare` are heard at once, by a thread of its own, and not answered; everything else runs on the main
thread, in order.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import selectors
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from horovod.tensorflow import mpi_ops

LIBRARY = mpi_ops._basics.MPI_LIB_CTYPES


def _direct(what: str, *arguments: int) -> None:
    if getattr(LIBRARY, f"horovod_edl_{what}")(*map(ctypes.c_longlong, arguments)) != 0:
        raise ValueError(f"{what} failed")


def _tell_key(env: dict[str, str], key: str) -> None:
    generation = ctypes.c_longlong(int(env["HOROVOD_EDL_GENERATION"]))
    if key:
        LIBRARY.horovod_edl_ring_key(generation, key.encode(), len(key.encode()))


class Worker:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._preparation = threading.Thread()
        self._prepared = False

    def serve(self) -> None:
        self.answer({"pid": os.getpid()})
        threading.Thread(target=self._read, daemon=True).start()
        while True:
            command = self._commands.get()
            started = time.monotonic()
            try:
                result = getattr(self, f"do_{command.pop('do')}")(**command)
                answer = {"ok": result}
            except (ValueError, tf.errors.OpError) as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            answer["seconds"] = time.monotonic() - started
            self.answer(answer)

    def answer(self, message: dict[str, Any]) -> None:
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def _read(self) -> None:
        with self._connection.makefile("rb") as lines:
            for line in lines:
                command = json.loads(line)
                if command["do"] == "abort":
                    LIBRARY.horovod_edl_abort()
                elif command["do"] == "abort_generation":
                    LIBRARY.horovod_edl_abort_generation(ctypes.c_longlong(command["generation"]))
                elif command["do"] == "prepare":
                    _tell_key(command["env"], command["key"])
                    self._prepare(command["env"])
                else:
                    self._commands.put(command)
        os._exit(0)

    def do_init(self, env: dict[str, str], key: str) -> dict[str, int]:
        _tell_key(env, key)
        for name in [name for name in os.environ if name.startswith("HOROVOD_")]:
            del os.environ[name]
        os.environ.update(env)
        hvd.init()
        return {
            "rank": hvd.rank(),
            "size": hvd.size(),
            "local_rank": hvd.local_rank(),
            "local_size": hvd.local_size(),
            "cross_rank": hvd.cross_rank(),
            "cross_size": hvd.cross_size(),
        }

    def _prepare(self, env: dict[str, str]) -> None:
        """Begin to connect the ring of this environment in a thread, as a worker does while it trains."""
        for name in ("GLOO_RENDEZVOUS_PORT", "GLOO_IFACE", "GLOO_TIMEOUT_SECONDS", "EDL_STORE_BATCH"):
            os.environ[f"HOROVOD_{name}"] = env[f"HOROVOD_{name}"]
        generation = ctypes.c_longlong(int(env["HOROVOD_EDL_GENERATION"]))
        names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
        place = [int(env[f"HOROVOD_{name}"]) for name in names]

        def prepare() -> None:
            self._prepared = LIBRARY.horovod_edl_prepare(generation, b"127.0.0.1", b"host", *place) == 0

        self._prepared = False
        self._preparation = threading.Thread(target=prepare, daemon=True)
        self._preparation.start()

    def do_prepared(self) -> bool:
        self._preparation.join()  # whoever counts threads afterwards must not see it
        return self._prepared

    def do_exchange(self, values: list[int]) -> list[int]:
        mine = np.array(values, np.int64)
        table = np.zeros(hvd.size() * mine.size, np.int64)
        _direct("exchange", mine.ctypes.data, table.ctypes.data, mine.nbytes)
        result: list[int] = table.tolist()
        return result

    def do_send(self, rank: int, count: int) -> None:
        data = np.arange(count, dtype=np.int64)
        _direct("send", rank, data.ctypes.data, data.nbytes)

    def do_receive(self, rank: int, count: int) -> int:
        data = np.zeros(count, np.int64)
        _direct("receive", rank, data.ctypes.data, data.nbytes)
        return int(data.sum())

    def do_shutdown(self) -> None:
        hvd.shutdown()

    def do_sum(self, values: list[float]) -> list[float]:
        result: list[float] = hvd.allreduce(tf.constant(values), op=hvd.Sum, name="sum").numpy().tolist()
        return result

    def do_all_operations(self) -> dict[str, Any]:
        """One of each, with results that depend on every rank."""
        rank, size = hvd.rank(), hvd.size()
        mine = tf.constant([float(rank + 1)])
        grouped = hvd.grouped_allreduce([mine, 10.0 * mine], op=hvd.Sum)
        alltoall = hvd.alltoall(tf.range(size) + 100 * rank)
        return {
            "allreduce": hvd.allreduce(mine, op=hvd.Sum).numpy().tolist(),
            "grouped": [tensor.numpy().tolist() for tensor in grouped],
            "allgather": hvd.allgather(mine).numpy().tolist(),
            "broadcast": hvd.broadcast(mine, root_rank=size - 1).numpy().tolist(),
            "alltoall": (alltoall[0] if isinstance(alltoall, tuple) else alltoall).numpy().tolist(),
            "reducescatter": hvd.reducescatter(tf.ones([size]), op=hvd.Sum).numpy().tolist(),
        }

    def do_allreduce_until_failure(self, elements: int, most: int = 10**9) -> int:
        """Sum in a loop; an error ends it (and is the answer)."""
        tensors = [tf.ones([elements]), tf.ones([3])]
        for number in range(most):
            total = hvd.grouped_allreduce(tensors, op=hvd.Sum, name="loop")
            assert total[0].numpy()[0] == hvd.size(), "a wrong sum"
            del number
        return most

    def do_time_allreduce(self, count: int, elements: int) -> float:
        @tf.function
        def reduce(tensor: tf.Tensor) -> tf.Tensor:
            return hvd.allreduce(tensor, op=hvd.Sum, name="timed")

        tensor = tf.ones([elements])
        for _ in range(10):
            reduce(tensor)
        started = time.perf_counter()
        for _ in range(count):
            reduce(tensor)
        return (time.perf_counter() - started) / count

    def do_resources(self) -> dict[str, int]:
        status = Path("/proc/self/status").read_text()
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        return {
            "fds": len(list(Path("/proc/self/fd").iterdir())),
            "threads": int(fields["Threads"]),
            "rss_kb": int(fields["VmRSS"].split()[0]),
        }

    def do_failure(self) -> str:
        buffer = ctypes.create_string_buffer(4096)
        LIBRARY.horovod_edl_failure(buffer, len(buffer))
        return buffer.value.decode()

    def do_features(self) -> int:
        return int(LIBRARY.horovod_edl_features())


def main(path: str, kind: type[Worker] = Worker) -> None:
    """Fork a worker per connection; report each exit as "<pid> <status>" on stdout."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    for source in (listener, wake_read, sys.stdin):
        selector.register(source, selectors.EVENT_READ)
    print("ready", flush=True)
    while True:
        for key, _ in selector.select():
            if key.fileobj is sys.stdin:
                return
            if key.fileobj is listener:
                connection, _ = listener.accept()
                if os.fork() == 0:
                    signal.set_wakeup_fd(-1)
                    selector.close()
                    listener.close()
                    kind(connection).serve()
                connection.close()
            else:
                os.read(wake_read, 64)
                while True:
                    try:
                        pid, status = os.waitpid(-1, os.WNOHANG)
                    except ChildProcessError:
                        break
                    if pid == 0:
                        break
                    print(pid, os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
