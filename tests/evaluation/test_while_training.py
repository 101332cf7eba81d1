"""Evaluation in a job whose workers die in the middle of it."""

from __future__ import annotations

import ast

import pytest

from edl_allreduce.testing.faults import Fault

pytestmark = [pytest.mark.training, pytest.mark.timeout(900)]


def reported(text: str, marker: str) -> dict[int, dict[str, float]]:
    """Metrics by step; a step that was reported twice is an error."""
    found: dict[int, dict[str, float]] = {}
    for line in text.splitlines():
        if marker in line:
            step, _, rest = line.partition(marker)[2].partition("]: ")
            assert int(step) not in found, f"step {step} was reported twice"
            found[int(step)] = ast.literal_eval(rest)
    return found


def test_a_rank_killed_while_it_evaluates(start_job):
    """Every evaluation is complete, reported once, and says what an undisturbed job says."""
    job = start_job(
        Fault("evaluate", "kill", {"rank": 1, "step": 20, "done": 2}),
        Fault("evaluate", "kill", {"rank": 0, "step": 40, "done": 1}),
    )
    assert job.wait(600) == 0, job.story()
    assert len(job.fired()) == 2
    assert job.audit().clean, job.audit()
    texts = "\n".join(e.text for e in job.events() if e.kind == "evaluation")
    found = reported(texts, "Evaluation metrics[step=")

    alone = start_job(name="alone", workers=1, distribution_strategy="Local")
    assert alone.wait(600) == 0, alone.story()
    expected = reported(alone.stdout(), "Evaluation metrics[step=")
    assert list(found) == list(expected) == [20, 40, 52]
    for step in found:
        assert found[step] == pytest.approx(expected[step], rel=1e-2, abs=1e-2)
    assert found[52]["accuracy"] > 0.5
