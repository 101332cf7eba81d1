"""One real job, a handful of faults from outside, and the judge; `make chaos` does more of it."""

from __future__ import annotations

import os
import shutil

import pytest

from chaos.__main__ import TOOLS
from chaos.campaign import Campaign
from chaos.faults import Case, Fault, Kind, Moment, Shape, Style, Who, Wire
from kubelab import tiers

pytestmark = [
    pytest.mark.training,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces and packet filters need root"),
]

FAULTS = (
    Fault(0.5, Kind.RESET_ONE_SIDE, Who.ONE, Wire.STREAM, 1.0),
    Fault(0.5, Kind.RESET, Who.ONE, Wire.RING),
    Fault(0.5, Kind.FREEZE, Who.ONE, seconds=0.5),
    Fault(0.5, Kind.FULL_DISK, Who.MACHINE, seconds=0.5),
    Fault(0.5, Kind.KILL, Who.MASTER, seconds=0.2),
    Fault(1.5, Kind.KILL, Who.ONE),
    Fault(0.5, Kind.RESET, Who.ALL, Wire.STREAM, moment=Moment.LAST_STEPS),
)


@pytest.fixture
def tools() -> None:
    """Installed where that is possible, as for a cluster; a fresh machine lacks some."""
    tiers.install(tiers.missing_packages())
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    assert not missing or not os.environ.get("CI"), f"CI must not leave this out: {missing} are missing"
    if missing:
        pytest.skip(f"{', '.join(missing)} are missing")


def test_a_job_survives_a_handful_of_faults_from_outside_and_nothing_is_lost(tmp_path, tools):
    shape = Shape(Style.BY_HAND, 2, True, 200, 3.0, 40, 60)
    outcome = Campaign(tmp_path / "campaign").attempt(Case(1, shape, FAULTS), "short")
    story = (tmp_path / "campaign" / "short" / "driver.out").read_text() if outcome.problems else ""
    assert outcome.problems == [], story
    assert outcome.done == len(FAULTS), "every fault met somebody"
    assert outcome.result["rings"] > 1 and outcome.result["made_again"] == 0
