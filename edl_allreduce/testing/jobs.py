"""A real job under test: started as a user would, watched through its events, judged by its audit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from edl_allreduce import clock
from edl_allreduce.cluster.registry import LocalJobFiles
from edl_allreduce.core.audit import Verdict
from edl_allreduce.core.status import EventRecord
from edl_allreduce.testing import faults as fault_module
from edl_allreduce.testing.faults import Fault
from edl_allreduce.worker.loop.diary import audit

POLL_SECONDS = 0.05
T = TypeVar("T")


class RunningJob:
    """`elasticdl train …` in a directory of its own, with faults."""

    def __init__(
        self,
        directory: Path,
        arguments: Sequence[str],
        faults: Sequence[Fault] = (),
        *,
        program: Sequence[str] = ("-m", "edl_allreduce.cli", "train"),
        job_dir: Path | None = None,
        within: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`within`: a command that runs the job somewhere else, in a network of its own for example;
        `environment`: what is added to this process's."""
        self.directory = directory
        self.job_dir = directory / "job" if job_dir is None else job_dir
        self.faults = directory / "faults"
        self.output = directory / "output"
        earlier = LocalJobFiles(self.job_dir)
        known = earlier.events() if earlier.abandoned() is not None else []
        self._before = self._serial = known[-1].serial if known else 0
        more = environment or {}
        self.environment = {**os.environ, **more, **fault_module.environment(list(faults), self.faults)}
        command = [
            *within, sys.executable, *program,
            f"--job_dir={self.job_dir}",
            f"--audit_dir={directory / 'audit'}",
            f"--output={self.output}",
            *arguments,
        ]  # fmt: skip
        with (directory / "stdout").open("wb") as out:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=out, env=self.environment, start_new_session=True
            )

    def events(self) -> list[EventRecord]:
        """All that happened to this run so far; an earlier master of the job may have told more."""
        return [event for event in LocalJobFiles(self.job_dir).events() if event.serial > self._before]

    def wait_for(
        self, kind: str, text: str = "", timeout: float = 120.0, *, again: bool = False
    ) -> EventRecord:
        """The next event of this kind whose text contains `text`, counted from the last one waited for.

        `again`: any such event of the whole job will do, and does not count as the last one waited for.
        """
        since = 0 if again else self._serial

        def find() -> EventRecord | None:
            return next(
                (e for e in self.events() if e.serial > since and e.kind == kind and text in e.text),
                None,
            )

        event = self._until(find, f"{kind}: …{text}…", timeout)
        if not again:
            self._serial = event.serial
        return event

    def wait_fired(self, count: int, timeout: float = 120.0) -> None:
        """Until so many faults fired."""
        self._until(lambda: len(self.fired()) >= count or None, f"{count} faults", timeout)

    def _until(self, find: Callable[[], T | None], what: str, timeout: float) -> T:
        for _ in clock.polls(POLL_SECONDS, within=timeout):
            found = find()
            if found is not None:
                return found
            if self.process.poll() is not None:
                found = find()
                if found is not None:
                    return found
                raise AssertionError(f"the job ended before {what}\n{self.story()}")
        raise AssertionError(f"{what} did not happen within {timeout:.0f} s\n{self.story()}")

    def fired(self) -> list[dict[str, int | str]]:
        return fault_module.fired(self.faults)

    def release(self) -> None:
        """Let ranks go on that a fault holds."""
        fault_module.release(self.faults)

    def pid(self, worker_id: int) -> int:
        """Of a worker, from its own log."""
        marker = f"worker {worker_id} (pid "
        line = next(line for line in self.log(worker_id).splitlines() if marker in line)
        return int(line.split(marker)[1].split(",")[0])

    def signal(self, worker_id: int, number: signal.Signals) -> None:
        os.kill(self.pid(worker_id), number)

    def log(self, worker_id: int) -> str:
        return (self.job_dir / "logs" / f"worker-{worker_id}.log").read_text(errors="replace")

    def stdout(self) -> str:
        return (self.directory / "stdout").read_text(errors="replace")

    def wait(self, timeout: float = 180.0) -> int:
        """The exit code."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job did not end within {timeout:.0f} s\n{self.story()}") from None

    def until_gone(self, pids: Sequence[int], timeout: float = 120.0) -> None:
        """Until none of these processes is left; for workers that outlive their master."""
        for _ in clock.polls(POLL_SECONDS, within=timeout):
            if not alive(pids):
                return
        raise AssertionError(f"{alive(pids)} still run after {timeout:.0f} s\n{self.story()}")

    def audit(self) -> Verdict:
        return audit(str(self.directory / "audit"))

    def story(self) -> str:
        """Everything that helps to understand a failed test."""
        parts = [f"--- {self.directory}", self.stdout()[-6000:]]
        for path in sorted((self.job_dir / "logs").glob("*.log")):
            parts += [f"--- {path.name}", path.read_text(errors="replace")[-3000:]]
        return "\n".join(parts)

    def end(self) -> None:
        """Leave nothing behind: master and workers, by their own pids."""
        pids = [self.process.pid] if self.process.poll() is None else []
        logs = self.job_dir / "logs"
        for path in sorted(logs.glob("worker-*.log")) if logs.exists() else []:
            worker_id = int(path.stem.split("-")[1])
            try:
                pids.append(self.pid(worker_id))
            except StopIteration:
                continue  # it never came so far as to write its pid
        for pid in pids:
            if alive([pid]):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def alive(pids: Sequence[int]) -> list[int]:
    """Those that still run. A pid may be another program's by now, so the command line is looked at too."""
    return [pid for pid in pids if _is_ours(pid)]


def _is_ours(pid: int) -> bool:
    try:
        return b"edl_allreduce" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
