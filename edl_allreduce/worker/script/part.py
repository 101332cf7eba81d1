"""A script's part in a job, from its flags to its last words; the engine runs in a thread of its own."""

from __future__ import annotations

import dataclasses
import logging
import os
import shlex
import signal
import threading
from collections.abc import Callable
from typing import Any

from edl_allreduce.contract import EXIT_TERMINATED, JOB_FLAGS
from edl_allreduce.core.health import Activity
from edl_allreduce.errors import JobFailed
from edl_allreduce.spec import JobSpec, parse_job
from edl_allreduce.worker.loop.assemble import Program, assemble, ready_message
from edl_allreduce.worker.loop.engine import Engine
from edl_allreduce.worker.loop.orders import Ending
from edl_allreduce.worker.script.turns import LoopGone, Over
from edl_allreduce.worker.script.worker import find_worker

log = logging.getLogger("edl_allreduce.elastic")


def job_flags() -> JobSpec:
    """Of the job that started this process; where none did, those of one worker alone."""
    flags = shlex.split(os.environ.get(JOB_FLAGS, ""))
    spec = parse_job("worker", flags).spec
    if not flags:  # nobody started this process: one worker, and the script's own words count
        spec = dataclasses.replace(spec, num_workers=1)
    return spec


class Part:
    """Signals, the engine's thread and the end, whoever leads."""

    def __init__(self, spec: JobSpec) -> None:
        self.worker = find_worker(spec)
        self.ended = False
        self.asked_to_leave = False
        self.exit_code = 0
        """With which a process ends whose part was over before the training is; known after `close`."""
        self._left = False
        self._spec = spec
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handlers
            for number in (signal.SIGTERM, signal.SIGINT):
                self._handlers[number] = signal.signal(number, self._drain)

    def assemble(self, program: Program) -> Engine:
        """The loop of this worker."""
        return assemble(self._spec, program, self.worker.orders, self.worker.ring)

    def start(self, program: Program, engine: Engine, tell: Callable[[Over], None]) -> None:
        """Say that this worker is ready and train; `tell` hears how it ended."""
        self.worker.ready(ready_message(self._spec, program, engine))
        threading.Thread(target=self._run, args=(engine, tell), name="engine", daemon=True).start()

    def over(self, over: Over) -> bool:
        """Whether the job is over, and not only this worker's part in it; raises what ended it."""
        self.ended = True
        if over.error is not None:
            raise over.error
        assert over.ending is not None
        log.info("ends: %s", over.ending.value)
        self._left = over.ending in (Ending.LEFT, Ending.ABANDONED)
        asked = self.asked_to_leave or self.worker.orders.draining  # by a signal, or by the master before
        if over.ending is Ending.ABANDONED and not asked:
            raise JobFailed(f"no master for {self._spec.master_grace_seconds:.0f} s")
        return over.ending is Ending.RELEASED

    def close(self, error: BaseException | None) -> None:
        """The last words. An error ends the process of a worker that a master leads."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if error is not None:
            self.worker.failed(error)
        elif not self.worker.close() and self._left:
            self.exit_code = EXIT_TERMINATED

    def _run(self, engine: Engine, tell: Callable[[Over], None]) -> None:
        try:
            over = Over(engine.run())
            self.worker.check()
        except LoopGone:
            return
        except Exception as error:  # noqa: BLE001  handed over to the script's thread, which raises it
            over = Over(None, error)
        tell(over)

    def _drain(self, number: int, frame: object) -> None:
        """SIGTERM or Ctrl-C: leave at a step boundary; the second time at once."""
        if self.asked_to_leave:
            os._exit(1)
        self.asked_to_leave = True
        log.info("asked to leave: draining")
        self.worker.drain()
        if self.worker.orders.progress.activity is Activity.PREPARING:
            told = self.worker.close()
            os._exit(0 if told else EXIT_TERMINATED)  # nobody counts on this worker yet
