"""Workers that find TensorFlow imported: `python -m edl_allreduce.testing.nursery SOCKET` forks them.

Most of a worker's start is the import, and a test of what happens to a worker later need not pay for it each
time. Forking is right because nothing of TensorFlow has run before; whatever is ours is imported after the
fork, under the environment of the job. `warm` is a master whose workers come from here.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
import traceback
from typing import Any, Final, NoReturn

from edl_allreduce.worker.start.tensorflow_import import import_tensorflow

LENGTH: Final = 8
"""Bytes that say how long a request is; the descriptor of the worker's log comes with them."""
READY: Final = "ready"


def main() -> None:
    """Serve until standard input ends: with whoever started this."""
    import_tensorflow()
    importlib.import_module("horovod.tensorflow.mpi_ops")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a nurse ended
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen(64)
        print(READY, flush=True)
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            with connection:
                if os.fork() == 0:
                    listener.close()
                    _nurse(connection)


def _nurse(connection: socket.socket) -> NoReturn:
    """The parent of one worker: tells its pid, and later how it ended. The master that asked may be gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, (log,), _, _ = socket.recv_fds(connection, LENGTH, 1)
    request = json.loads(_read(connection, int.from_bytes(head)))
    worker = os.fork()
    if worker == 0:
        connection.close()
        _become(request, log)
    os.close(log)
    connection.sendall(f"{worker}\n".encode())
    _, status = os.waitpid(worker, 0)
    try:
        connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    finally:
        os._exit(0)


def _read(connection: socket.socket, length: int) -> bytes:
    parts = bytearray()
    while len(parts) < length:
        part = connection.recv(length - len(parts))
        if not part:
            os._exit(0)  # whoever asked is gone
        parts += part
    return bytes(parts)


def _become(request: dict[str, Any], log: int) -> NoReturn:
    """The process that `python -m MODULE ARGUMENTS` would be, in a session of its own."""
    code = 1
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        for there, here in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(there, here)
        os.close(nothing)
        os.close(log)
        os.chdir(request["directory"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.path[0] = request["directory"]
        tempfile.tempdir = None
        sys.argv = ["", *request["arguments"]]
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001  as the interpreter does where nobody else did
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
