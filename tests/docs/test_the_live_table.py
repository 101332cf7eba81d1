"""The picture of the live table in the docs is what the code draws. SCREENSHOTS=true takes it anew."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

from rich.console import Console

from edl_allreduce.core import events
from edl_allreduce.core.goodput import Bucket, GoodputReport
from edl_allreduce.core.progress import Length
from edl_allreduce.core.status import EventRecord, JobStatus, Tally, WorkerStatus
from edl_allreduce.master.picture import render

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "table.svg"
SCREENSHOTS = os.environ.get("SCREENSHOTS") == "true"

HAPPENED = {
    31.2: events.WorkerExited(1, "disrupted", "was killed by SIGKILL"),
    31.24: events.RingPlanned(2, (0, 2), abort=True, reason="worker 1 was disrupted", cause="loss"),
    31.27: events.RingReformed(0, 2, 2, 0.039, 0.001, 0.010, 0.0, 0.019),
    31.7: events.WorkerLaunched(3, "disrupted"),
    34.6: events.WorkerReady(3),
    34.61: events.RingPlanned(3, (0, 2, 3), abort=False, reason="worker 3 is ready", cause="growth"),
    34.8: events.RingReformed(0, 3, 3, 0.0, 0.001, 0.004, 0.004, 0.030),
}
"""By second."""


def member(number: int, rank: int, compute: float) -> WorkerStatus:
    return WorkerStatus(
        number, "127.0.0.1", "ring", rank, "computing", 2164, pid=4100 + number, compute_seconds=compute
    )


def a_job() -> JobStatus:
    """Three workers; one was killed and another one took its place."""
    return JobStatus(
        job_name="digits", phase="Training", wanted=3, minimum=1, generation=3, step=2164, total_steps=6000,
        loss=0.0213, records_per_second=8187.0, steps_per_second=42.6, waiting_for="", elapsed=61.0,
        workers=[member(0, 0, 0.011), member(2, 1, 0.012), member(3, 2, 0.011)],
        events=[
            EventRecord(number, second, event.kind, event.text())
            for number, (second, event) in enumerate(HAPPENED.items(), 1)
        ],
        position=415_488, length=Length(records=1437, epochs=800, batch=192),
        tally=Tally(steps=2164, records=415_488, trained=57.5, pauses=[0.075, 0.039], losses=1),
        losses=[2.3 / (1 + step) for step in range(40)],
        goodput=GoodputReport(
            61.0, {Bucket.STEP: 56.9, Bucket.STARTUP: 3.6, Bucket.JOIN: 0.5}, 183.0, {Bucket.STEP: 168.2}
        ),
    )  # fmt: skip


def test_the_picture_in_the_docs_is_the_table_that_people_see():
    console = Console(
        record=True, width=104, height=30, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(render(a_job()))
    drawn = console.export_svg(title="elasticdl train", unique_id="table")
    drawn = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)  # nothing is fetched from elsewhere
    drawn = re.sub(r"[ \t]+$", "", drawn, flags=re.MULTILINE)
    if SCREENSHOTS:
        PICTURE.write_text(drawn)
    assert drawn == PICTURE.read_text(), "the table looks different now: SCREENSHOTS=true takes it anew"
