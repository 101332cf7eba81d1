"""Output that nobody reads any more is lost; whoever writes it goes on."""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
import sys

import pytest

from edl_allreduce.cluster.registry import LocalJobFiles
from edl_allreduce.core.status import JobStatus
from edl_allreduce.master.display import Display
from edl_allreduce.master.local import LocalJob
from edl_allreduce.master.outlet import Outlet
from edl_allreduce.spec import parse_job
from tests.terminal.statuses import status

NOT_UTF8 = {**os.environ, "LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


def outlet_on(descriptor: int, said: list[str]) -> Outlet:
    return Outlet(os.fdopen(descriptor, "w"), said.append)


def test_a_full_disk_loses_what_is_printed_and_says_so_once():
    said: list[str] = []
    out = outlet_on(os.open("/dev/full", os.O_WRONLY), said)
    for _ in range(3):
        assert out.write("x" * 100_000) == 100_000
        out.flush()
    assert said == ["No space left on device"] and out.lost


def test_a_reader_that_has_gone_is_no_failure():
    said: list[str] = []
    reader, writer = os.pipe()
    out = outlet_on(writer, said)
    out.write("heard\n")
    out.flush()
    os.close(reader)
    for _ in range(2):
        out.write("not heard\n")
        out.flush()
    assert said == ["Broken pipe"]


def test_what_is_read_arrives():
    reader, writer = os.pipe()
    out = outlet_on(writer, [])
    out.write("Grüße\n")
    out.flush()
    assert os.read(reader, 100).decode() == "Grüße\n"
    os.close(reader)


class Noting:
    """As much of a master as can be told something."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def note(self, kind: str, text: str) -> None:
        self.told.append(text)


def test_a_job_directory_that_can_no_longer_be_written_is_told_once_and_ends_nothing(tmp_path):
    flags = ["--job_name=x", "--model_def=a.b.c", "--training_data=d", f"--job_dir={tmp_path / 'job'}"]
    local = LocalJob(parse_job("train", flags).spec, show=False)
    local.job = noting = Noting()  # type: ignore[assignment]
    for _ in range(2):
        local._keep(lambda: LocalJobFiles(tmp_path / "job").write_result(status()))
    assert len(noting.told) == 1 and "No such file or directory" in noting.told[0]
    assert local.trouble == noting.told[0], "the summary says it again"


def test_a_log_on_a_full_disk_is_lost_without_a_word():
    program = (
        "import logging; from edl_allreduce import logs\n"
        "logs.configure('INFO', 'master', files={'--log_file_path': '/dev/full'}, to_terminal=True)\n"
        "for _ in range(2000): logging.info('a line that fills the disk')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 2000


# ----------------------------------------------------------------------------------- whole small commands


def elasticdl(
    command: str, *, env: dict[str, str] | None = None, cwd=None
) -> subprocess.CompletedProcess[str]:
    """As a shell runs it."""
    line = command.replace("elasticdl", f"{sys.executable} -m edl_allreduce.cli", 1)
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, timeout=60, env=env, cwd=cwd, errors="replace"
    )


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("elasticdl --help >&-", 0, ""),
        ("elasticdl --help >&- 2>&- <&-", 0, ""),
        ("elasticdl --help >/dev/full", 1, "elasticdl: No space left on device\n"),
    ],
)
@pytest.mark.programs
def test_a_command_without_a_place_to_print_has_no_traceback(command, code, said):
    done = elasticdl(command)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", said)


@pytest.mark.programs
def test_a_path_with_an_umlaut_in_a_locale_without_utf8(tmp_path):
    done = elasticdl(f"elasticdl events --job_dir={tmp_path}/Dätä", env=NOT_UTF8)
    assert done.returncode == 2 and f"{tmp_path}/Dätä holds no job" in done.stderr


def test_a_name_that_is_not_utf8_is_refused_before_anything_begins():
    done = elasticdl("elasticdl train --training_data=$'da\\xff'")
    assert done.returncode == 2 and "is not UTF-8" in done.stderr and "\\udcff" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.programs
def test_a_directory_that_was_deleted(tmp_path, digits_flags):
    gone = tmp_path / "gone"
    gone.mkdir()
    job = shlex.join(["--job_name=x", *(f"--{name}={value}" for name, value in digits_flags.items())])
    done = elasticdl(f"rmdir {gone}; elasticdl train {job} --job_dir={tmp_path / 'job'}", cwd=gone)
    assert done.returncode == 2, done.stderr
    assert "the current directory was deleted" in done.stderr and "Traceback" not in done.stderr


def test_a_bug_in_the_table_spoils_no_job(caplog):
    looks: list[int] = []

    def status_with_a_bug() -> JobStatus:
        looks.append(1)
        raise ZeroDivisionError("a bug")

    async def run() -> None:
        display = Display(status_with_a_bug, show=False)
        while len(looks) < 2:
            await asyncio.sleep(0.01)
        await display.close()

    asyncio.run(run())
    assert caplog.text.count("a picture of the job could not be drawn") == 1
