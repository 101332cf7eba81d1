"""`elasticdl report` and `elasticdl dashboard`, of jobs that run, ran, or have no page."""

from __future__ import annotations

import json
import stat
import webbrowser
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from edl_allreduce.cli import dashboard, drain, report
from edl_allreduce.cluster.known import Address
from edl_allreduce.cluster.registry import LocalJobFiles
from edl_allreduce.core import events
from edl_allreduce.core.protocol import DrainWorker
from edl_allreduce.core.status import EventRecord, JobStatus
from edl_allreduce.errors import JobFailed, UsageError
from edl_allreduce.spec import parse_job
from edl_allreduce.web.guard import page_token

from .builders import history, status

TOLD = history((0.0, events.WorkerLaunched(0)), (1.0, events.WorkerReady(0)))


@dataclass
class Job:
    """A job as commands know it."""

    address: str = ""
    """Of its page."""
    runs: bool = True
    kept: bytes = b""
    name: str = "digits"
    named: str = "--job_name=digits"
    told: list[EventRecord] = field(default_factory=lambda: TOLD)

    def running(self) -> Address | None:
        return Address("digits", "127.0.0.1:1", "job-token", 7, 7, 0.0) if self.runs else None

    def page(self) -> str:
        return self.address

    def report(self) -> bytes:
        return self.kept

    def result(self) -> JobStatus | None:
        return None if self.runs else status(phase="Succeeded")

    def history(self) -> list[EventRecord]:
        return self.told


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch):
    def know(job: Job) -> Job:
        for module in (report, dashboard, drain):
            monkeypatch.setattr(module, "resolve_job", lambda _: job)
        return job

    return know


def test_the_report_of_a_running_job_is_what_its_page_shows(stage, known, capsys):
    job = known(Job(stage(status, TOLD, token=page_token("job-token")).address))
    assert report.main(["--format=json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["status"]["phase"] == "Training" and [one["serial"] for one in data["events"]] == [1, 2]
    job.runs = False
    assert dashboard.state_of(job) == b""


def test_the_report_of_a_job_that_is_over_is_what_its_master_left(known, capsys):
    known(Job(runs=False, kept=b'{"kept": true}'))
    assert report.main(["--format=json"]) == 0
    assert capsys.readouterr().out == '{"kept": true}\n'


def test_a_job_that_left_no_report_has_its_history(known, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    known(Job(runs=False))
    assert report.main([]) == 0
    assert capsys.readouterr().out == "The report of digits is in digits-report.html\n"
    assert "worker 0 is ready" in (tmp_path / "digits-report.html").read_text()
    assert report.main(["--format=md", f"--file={tmp_path / 'digits.md'}"]) == 0
    assert (tmp_path / "digits.md").read_text().startswith("# digits: Succeeded")


def test_the_address_of_the_page_has_its_token_behind_the_sharp(known, capsys):
    known(Job("127.0.0.1:8080"))
    assert dashboard.main(["--print"]) == 0
    assert capsys.readouterr().out == f"http://127.0.0.1:8080/#token={page_token('job-token')}\n"


def test_the_browser_gets_a_file_that_only_this_user_can_read(known, capsys, monkeypatch):
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "get", lambda: None)
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or True)
    known(Job("127.0.0.1:8080"))
    assert dashboard.main([]) == 0
    assert page_token("job-token") not in capsys.readouterr().out + opened[0]
    path = Path(unquote(urlsplit(opened[0]).path))
    assert f"#token={page_token('job-token')}" in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.unlink()
    path.parent.rmdir()


def test_a_worker_is_drained_by_its_number(known, capsys, monkeypatch):
    asked = []
    monkeypatch.setattr(drain, "ask", lambda job, command: asked.append(command))
    known(Job())
    assert drain.main(["3"]) == 0
    assert asked == [DrainWorker(3)] and "worker 3 leaves after its step" in capsys.readouterr().out
    for wrong in ([], ["three"], ["-1"]):
        with pytest.raises(UsageError):
            drain.main(wrong)


def test_a_job_without_a_page_says_so(known):
    known(Job())
    with pytest.raises(JobFailed, match="--dashboard_port=off"):
        dashboard.main([])
    known(Job(runs=False))
    with pytest.raises(
        JobFailed, match="is over, and its page with it; `elasticdl report --job_name=digits`"
    ):
        dashboard.main([])


def test_a_new_run_of_a_job_does_not_show_the_report_of_the_last_one(tmp_path):
    files = LocalJobFiles(tmp_path)
    files.write_report(b"{}", "<p>")
    assert files.report() == b"{}"
    files.register(Address("digits", "127.0.0.1:1", "token", 7, 7, 0.0))
    assert files.report() == b"" and not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(("text", "port"), [("auto", 0), ("off", None), ("8080", 8080)])
def test_the_port_of_the_page(text, port):
    assert _spec(text).typed.dashboard_port == port


@pytest.mark.parametrize("text", ["0", "65536", "-1", "none", "80 "])
def test_what_is_no_port_is_told(text):
    with pytest.raises(UsageError, match="expected auto, off or a port from 1 to 65535"):
        _spec(text)


def _spec(port: str):
    flags = [
        "--job_name=a",
        "--model_zoo=z",
        "--model_def=a.b",
        "--training_data=d",
        f"--dashboard_port={port}",
    ]
    return parse_job("train", flags).spec
