"""Files move and change while a job trains: newcomers may suffer from it, those who train do not."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.training


def elasticdl(job, *words):
    command = [
        sys.executable,
        "-m",
        "edl_allreduce.cli",
        *words,
        "--job_name=job",
        f"--job_dir={job.job_dir}",
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_data_that_was_moved_keeps_newcomers_out_and_the_others_train_on(train, lines, ended_well):
    job = train()
    lines.rename(lines.with_name("elsewhere"))
    assert elasticdl(job, "scale", "--num_workers=3").returncode == 0
    told = job.wait_for("short").text
    assert "worker 2 could not begin: DataError" in told and str(lines) in told
    status = elasticdl(job, "status", "--output=json").stdout
    assert "2 of 3 workers: worker 2 could not begin: DataError" in status
    job.release()
    ended_well(job)
    assert [e.text for e in job.events() if e.kind == "short"] == [told], "once"


def test_a_model_file_saved_half_edited_is_told_and_the_job_goes_on_with_the_old_one(
    train, zoo, lose_one, ended_well
):
    job = train()
    (zoo / "net.py").write_text("def custom_model(:\n")
    lose_one(job)
    told = job.wait_for("edited").text
    assert told.endswith("net.py changed since the job began; it goes on with the old one")
    job.wait_for("ready", "worker 2")
    job.release()
    ended_well(job)


def test_a_line_appended_to_the_data_keeps_newcomers_out(train, lines, lose_one, ended_well):
    job = train()
    with (lines / "digits.csv").open("a") as file:
        file.write(",".join(["1"] * 65) + "\n")
    lose_one(job)
    told = job.wait_for("short").text
    assert "worker 2 differs from the rest and is refused: training data" in told
    job.release()
    ended_well(job)


def test_newcomers_train_what_the_others_train(train, zoo, lose_one, ended_well):
    """Another loss, and another layer size in a file that the model file imports."""
    job = train()
    for file, before, after in [
        ("net.py", "from_logits=True)", "from_logits=True) * 1000"),
        ("parts.py", "WIDTH = 24", "WIDTH = 32"),
    ]:
        text = (zoo / file).read_text()
        assert before in text
        (zoo / file).write_text(text.replace(before, after))
    lose_one(job)
    job.wait_for("edited", "net.py")
    job.wait_for("edited", "parts.py")
    job.wait_for("ready", "worker 2")
    job.release()
    ended_well(job)
    assert "(finished)" in job.log(2), job.story()
